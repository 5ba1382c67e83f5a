// AveragingData and DownloadData by hand, so that the tensor's bytes are neither copied into nor out of a protobuf:
// sending gathers [head, buffer, tail], receiving yields a view into the received record.
// Source: hivemind wire spec, sections 1.2 and 1.3.
#pragma once

#include <optional>
#include <string>

#include "cohive/codec/codec.hpp"
#include "cohive/core/result.hpp"

namespace cohive::averaging {

/// A serialised tensor whose buffer is a view.
struct TensorView {
  ByteView buffer;
  codec::Shape shape;
  std::string dtype;
  int compression = 0;
  bool requires_grad = false;
  int chunks = 0;
};

struct PartMessage {
  int code = 0;
  std::string group_id;
  std::optional<TensorView> tensor;
  double weight = 0;
};
Result<PartMessage> parse_part(ByteView bytes);

struct DownloadMessage {
  std::string metadata;
  std::optional<TensorView> tensor;
  std::uint64_t skipped = 0;  ///< ours: tensors left out because the request named them
};
Result<DownloadMessage> parse_download(ByteView bytes);

/// hivemind's request is empty, and Python passes over what we put into it: what an earlier donor of the same state
/// (the same metadata) has already sent.
struct DownloadRequest {
  std::string metadata;
  std::uint64_t tensors = 0;
};
std::string encode_request(const DownloadRequest& request);
Result<DownloadRequest> parse_request(ByteView bytes);

/// What goes before and behind the buffer.
struct Envelope {
  std::string head, tail;
};
Envelope envelope_part(int code, std::string_view group_id, std::size_t buffer_size, std::size_t elements,
                       int compression, double weight);
/// A message that is only a code.
Envelope envelope_code(int code);
/// \param first  the first chunk of a tensor carries its description, later ones only bytes
Envelope envelope_download(std::string_view metadata, const TensorView& tensor, bool first, std::uint64_t skipped = 0);

}  // namespace cohive::averaging
