#include "cohive/checkpoint/errors.hpp"

#include "cohive/core/error_category.hpp"

namespace cohive::checkpoint {
namespace {

constexpr ErrorSentence<Errc> kSentences[] = {
    {Errc::not_safetensors, "not a safetensors file"},
    {Errc::damaged, "the file is damaged"},
    {Errc::does_not_fit, "the checkpoint does not fit the model"},
    {Errc::other_run, "the checkpoint belongs to another run"},
    {Errc::not_empty, "the folder holds checkpoints already: resume from them, or name another folder"},
    {Errc::in_use, "another process writes its checkpoints there: give each a folder of its own"},
    {Errc::nothing_to_save, "the state could not be copied"},
    {Errc::newer_version, "the checkpoint was written by a newer cohive: update this one"},
};

}  // namespace

const std::error_category& checkpoint_category() noexcept {
  static const ErrorCategory<kSentences> category("cohive.checkpoint");
  return category;
}

}  // namespace cohive::checkpoint
