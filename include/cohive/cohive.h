/** \file
 * The C interface of cohive: for C, and for every language that can call C. `libcohive.so` exports these names only.
 *
 * How to call:
 *  - Every function may be called on any thread. None calls back: what needs the caller is an event to be fetched.
 *  - A function that can fail returns a code; COHIVE_OK is 0. cohive_last_error() is the sentence for people.
 *  - What takes time gives a ticket at once, on which one waits, with a time limit, or which one cancels.
 *  - Options are a JSON object; null is {}. An option that does not exist is an error that names the nearest one.
 *  - Keys and values are msgpack, as Python hivemind writes it: a tuple is extension 0x40 around an array.
 *  - After a fork(), handles are dead in the child: functions answer COHIVE_FORKED there, and freeing does nothing. The
 *    child's copies of cohive's sockets are closed. It may open a swarm of its own.
 */
#ifndef COHIVE_COHIVE_H
#define COHIVE_COHIVE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Grows with every change that an older caller would not survive. */
#define COHIVE_ABI_VERSION 3

#if defined(__GNUC__)
#define COHIVE_API __attribute__((visibility("default")))
#else
#define COHIVE_API
#endif

/** What a function returns. */
enum cohive_code {
  COHIVE_OK = 0,
  COHIVE_PENDING = 1,          /**< the time is over, and what was waited for goes on */
  COHIVE_INVALID_ARGUMENT = 2, /**< an option, address, key or value that cannot be meant */
  COHIVE_TIMEOUT = 3,          /**< a deadline has passed, and what was going on has ended */
  COHIVE_CANCELLED = 4,        /**< by cohive_ticket_cancel(), or by a function of the caller's that has failed */
  COHIVE_CLOSED = 5,           /**< the swarm is closed, or not there yet */
  COHIVE_NOT_FOUND = 6,        /**< no node that answered has such a record, or a file does not exist */
  COHIVE_UNREACHABLE = 7,      /**< nobody answered */
  COHIVE_REFUSED = 8,          /**< nodes keep a newer record, or do not take this one */
  COHIVE_INVALID_RECORD = 9,   /**< a validator does not accept the record */
  COHIVE_LIMIT_EXCEEDED = 10,  /**< larger or more than allowed */
  COHIVE_IN_USE = 11,          /**< another process has the address or the identity */
  COHIVE_IO = 12,              /**< the operating system reported a failure */
  COHIVE_UNAUTHORIZED = 13,    /**< not a member of a swarm that has members */
  COHIVE_FORKED = 14,          /**< the handle belongs to the process that this one was forked from */
  COHIVE_FAILED = 15,          /**< anything else that another machine did */
  COHIVE_INTERNAL = 16         /**< a defect of cohive */
};

/** A membership in a swarm: a libp2p host, and a node of hivemind's DHT on it. */
typedef struct cohive_swarm cohive_swarm;
/** Something that was begun. */
typedef struct cohive_ticket cohive_ticket;
/** Says which records a node holds, and signs them. */
typedef struct cohive_validator cohive_validator;

/** Bytes that the library has made: give them back to cohive_bytes_free(). */
typedef struct cohive_bytes {
  uint8_t* data; /**< null where there are none */
  size_t size;   /**< bytes */
} cohive_bytes;

/** Values in host memory, row-major and little-endian, with what travels beside them. */
typedef struct cohive_tensor {
  const void* data;      /**< the values; never null, unless there are none */
  const uint32_t* shape; /**< `rank` numbers, outermost first; may be null for a scalar */
  const char* dtype;     /**< as PyTorch names it: "float32", "bool", ... */
  const char*
      codec;   /**< "NONE", "FLOAT16", "MEANSTD_16BIT", "QUANTILE_8BIT", "UNIFORM_8BIT", "BLOCKWISE_8BIT"; null: NONE */
  size_t size; /**< bytes of the values */
  int32_t rank;          /**< dimensions */
  int32_t requires_grad; /**< 0 or 1; named in schemas, and travels with states */
  int32_t on_gpu;        /**< 1: of a state, values in the memory of the trainer's "device"; else 0 */
} cohive_tensor;

/* ---- The library */

/** COHIVE_ABI_VERSION of the library that is loaded. */
COHIVE_API int32_t cohive_abi_version(void);
/** "0.1.0". */
COHIVE_API const char* cohive_version(void);
/** The commit that the library was built from. */
COHIVE_API const char* cohive_revision(void);
/** What went wrong in the last call of this thread that did not return COHIVE_OK or COHIVE_PENDING: one sentence. It
 * lives until the thread's next call. */
COHIVE_API const char* cohive_last_error(void);
/** The name of a code: "timeout"; "unknown" for other numbers. */
COHIVE_API const char* cohive_code_name(int32_t code);
/** Frees the bytes and empties the struct; null and empty ones are nothing to do. */
COHIVE_API void cohive_bytes_free(cohive_bytes* bytes);

/* ---- Events */

/** What an event tells. */
enum cohive_event_kind {
  COHIVE_EVENT_TICKET = 1,  /**< the ticket of cohive_ticket_notify(ticket, tag) has ended */
  COHIVE_EVENT_LOG = 2,     /**< a line of the log: level, module, and the message as text */
  COHIVE_EVENT_STATE = 4,   /**< cohive_state_answer(tag, ...) is awaited; text: the tag of the averager, in digits */
  COHIVE_EVENT_VALIDATE = 3 /**< cohive_event_answer(tag, ...) is awaited; see cohive_validator_custom() */
};

/** One event. Its texts live until the thread's next call of cohive_event_next(). */
typedef struct cohive_event {
  int32_t kind;       /**< cohive_event_kind */
  int32_t level;      /**< of a line: 0 trace, 1 debug, 2 info, 3 warn, 4 error */
  uint64_t tag;       /**< of the ticket or of the question */
  const char* module; /**< of a line: "dht"; it ends with a zero */
  const char* text;   /**< bytes; a zero follows them */
  size_t size;        /**< of text, in bytes */
} cohive_event;

/** Takes the next event of the process, oldest first. Waits for one as long as `timeout_ms`, negative: any time.
 * COHIVE_PENDING: there was none, or cohive_event_wake() was called. Beyond 16,384 that wait, lines are dropped, and a
 * line tells how many. */
COHIVE_API int32_t cohive_event_next(int64_t timeout_ms, cohive_event* event);
/** Has one waiting cohive_event_next() return COHIVE_PENDING; if none waits, the next one. */
COHIVE_API void cohive_event_wake(void);
/** Answers a question. COHIVE_NOT_FOUND: nobody waits for the answer any more. */
COHIVE_API int32_t cohive_event_answer(uint64_t tag, int32_t accepted);

/** Sets the log of the process. Options: "level": "info" or "info,averaging=debug,dht=off"; "format": "text" or "json";
 * "to": "stderr" (default) or "events". */
COHIVE_API int32_t cohive_log_configure(const char* options);

/* ---- Tickets */

/** Waits until it has ended, as long as `timeout_ms`, negative: any time. COHIVE_PENDING: it has not. Else how it
 * ended. */
COHIVE_API int32_t cohive_ticket_wait(cohive_ticket* ticket, int64_t timeout_ms);
/** What it has brought, when it has ended with COHIVE_OK: msgpack, as the function that began it says. The bytes live
 * as long as the ticket. COHIVE_PENDING before. */
COHIVE_API int32_t cohive_ticket_result(cohive_ticket* ticket, const uint8_t** data, size_t* size);
/** Has an event with this tag tell when it ends; at once, if it has. One tag for a ticket. */
COHIVE_API int32_t cohive_ticket_notify(cohive_ticket* ticket, uint64_t tag);
/** Gives it up: it ends soon, with COHIVE_CANCELLED unless it has ended before. */
COHIVE_API int32_t cohive_ticket_cancel(cohive_ticket* ticket);
/** Forgets it, without cancelling it. Null is nothing to do. */
COHIVE_API void cohive_ticket_free(cohive_ticket* ticket);

/* ---- Validators */

/** Protects records whose key or subkey names an owner, by RSA-PSS signatures of this private key.
 * \param pkcs1_der  a private key; null: a fresh one of 2,048 bits, which takes some tens of milliseconds */
COHIVE_API int32_t cohive_validator_rsa(const uint8_t* pkcs1_der, size_t size, cohive_validator** validator);
/** Asks the process itself, by an event COHIVE_EVENT_VALIDATE, whether a record may be held. Its text is a msgpack
 * array: the tag, the key's id (20 bytes), the subkey's msgpack (nil: none), the value's msgpack, and the expiration in
 * Unix seconds. Without an answer within `timeout` seconds the record is refused. Validators with a lower priority sign
 * earlier and check later; that of RSA has 10. */
COHIVE_API int32_t cohive_validator_custom(uint64_t tag, int32_t priority, double timeout,
                                           cohive_validator** validator);
/** Forgets it; swarms that have it keep it. */
COHIVE_API void cohive_validator_free(cohive_validator* validator);
/** Of an RSA validator, a msgpack map: "public_key" ("ssh-rsa AAAA..."), "marker" ("[owner:ssh-rsa AAAA...]", to be put
 * into keys or subkeys) and "private_key" (PKCS#1 DER). */
COHIVE_API int32_t cohive_validator_describe(cohive_validator* validator, cohive_bytes* description);
/** The base64 RSA-PSS signature of these bytes by an RSA validator's key. */
COHIVE_API int32_t cohive_rsa_sign(cohive_validator* validator, const uint8_t* data, size_t size,
                                   cohive_bytes* signature);
/** Whether a base64 signature is that of the owner of "ssh-rsa AAAA...": COHIVE_OK, or COHIVE_INVALID_RECORD. */
COHIVE_API int32_t cohive_rsa_verify(const char* public_key, const uint8_t* data, size_t size, const uint8_t* signature,
                                     size_t signature_size);

/* ---- Swarms */

/** Joins a swarm, or begins one. The handle is there at once; the ticket ends when the swarm has been joined, with what
 * cohive_swarm_status() gives. Cancelling it gives the joining up.
 *
 * Options, with the names of hivemind.DHT; times in seconds:
 *  - initial_peers, host_maddrs, announce_maddrs, trusted_relays: arrays of multiaddrs; host_maddrs is by default all
 *    interfaces, ["/ip4/0.0.0.0/tcp/0"]
 *  - peers_from_environment (default true): no initial_peers means $INITIAL_PEERS
 *  - bootstrap (default false): be the first node of a swarm, or one of its first: the environment is not asked, and
 * where no initial peer answers the node is there alone, and goes on trying
 *  - identity_path, secret_file, members_file, metrics_address, metrics_token_file, trace_file: text
 *  - client_mode, use_relay, nat_port_map, ensure_bootstrap_success: booleans
 *  - relay_service (default false): relay other peers' connections
 *  - check_owners (default true): records whose key or subkey names an owner are signed with the key of this peer, and
 *    refused where others have not signed theirs; hivemind.DHT has it only with an RSASignatureValidator
 *  - force_reachability: "public" or "private"
 *  - max_upload, max_download: bytes per second
 *  - congestion_control: the kernel's algorithm by which connections to other cohive peers send; by default "bbr" where
 *    the kernel has it; "kernel": the kernel's own choice
 *  - connections_per_peer (default 16): connections to one cohive peer that carry its bytes together, at most
 *  - bootstrap_timeout, wait_for_swarm
 *  - of the DHT: bucket_size, num_replicas, beam_size, depth_modulo, wait_timeout, refresh_timeout, cache_locally,
 *    cache_nearest, cache_size, cache_refresh_before_expiry, cache_on_store, reuse_get_requests, num_workers,
 * chunk_size, parallel_rpc, blacklist_time, backoff_rate, max_records, max_value_bytes, search_timeout,
 * operation_timeout
 * \param validators  `count` of them, of which one that signs has its key used for all records of this peer; may be
 * null */
COHIVE_API int32_t cohive_swarm_open(const char* options, cohive_validator* const* validators, size_t count,
                                     cohive_swarm** swarm, cohive_ticket** joined);
/** The ticket brings a msgpack map: "peer_id", "visible_maddrs" (by which others join), "client_mode", "nodes" (known
 * to the DHT, without this one), "records" (held for others), "metrics_url", "page_url". */
COHIVE_API int32_t cohive_swarm_status(cohive_swarm* swarm, cohive_ticket** status);
/** Leaves the swarm. Whatever goes on there ends with COHIVE_CLOSED. The ticket ends when all is gone, also where an
 * earlier call has begun it. */
COHIVE_API int32_t cohive_swarm_close(cohive_swarm* swarm, cohive_ticket** closed);
/** Forgets the handle, and leaves the swarm if that has not been done, in the background. Null is nothing to do. */
COHIVE_API void cohive_swarm_free(cohive_swarm* swarm);

/* ---- The DHT */

/** Stores records.
 * \param records  a msgpack array of arrays [key, value, expiration in Unix seconds] or [key, value, expiration,
 * subkey]
 * \param options  "timeout": seconds in all, by default those of the DHT
 * The ticket brings an array with nil for each record that was stored, else [code, sentence]. */
COHIVE_API int32_t cohive_dht_store(cohive_swarm* swarm, const uint8_t* records, size_t size, const char* options,
                                    cohive_ticket** stored);
/** Looks records up.
 * \param keys     a msgpack array
 * \param options  "latest": finish the search and take the newest record (default false: the first one found);
 *                 "timeout": seconds in all
 * The ticket brings an array with nil for each key that has no record, [value, expiration] for a plain one, [nil,
 * expiration, entries] for a dictionary, whose entries are arrays [subkey, value, expiration], and [nil, nil, nil,
 * code, sentence] where it could not be looked up. */
COHIVE_API int32_t cohive_dht_get(cohive_swarm* swarm, const uint8_t* keys, size_t size, const char* options,
                                  cohive_ticket** found);
/** Asks another peer for its place in the DHT. \param peer_id  base58. The ticket brings 20 bytes, or nil of a peer
 * that serves nothing; it fails where the peer does not answer. Option: "timeout". */
COHIVE_API int32_t cohive_dht_ping(cohive_swarm* swarm, const char* peer_id, const char* options,
                                   cohive_ticket** answered);
/** Adds a validator; it applies to records from now on. Null: the one that signs with the key of this peer. */
COHIVE_API int32_t cohive_dht_add_validator(cohive_swarm* swarm, cohive_validator* validator);
/** The id of a key, 20 bytes: where its record is held. \param key  msgpack */
COHIVE_API int32_t cohive_dht_key_id(const uint8_t* key, size_t size, uint8_t id[20]);

/* ---- Codecs */

/** Encodes a tensor by its codec; where that cannot encode its dtype or shape, by none. \param used  the codec's number
 * on the wire; may be null */
COHIVE_API int32_t cohive_codec_encode(const cohive_tensor* tensor, cohive_bytes* encoded, int32_t* used);
/** The reverse. \param tensor  dtype, shape and codec; `data` and `size` are the encoded bytes */
COHIVE_API int32_t cohive_codec_decode(const cohive_tensor* tensor, cohive_bytes* values);

/* ---- Statistics of optimizers */

/** Has steps be able to use what codecs and peers have left of an optimizer's statistics: raises squares to zero, and
 * sets a mean to zero where no gradients have the squares beside it. cohive_trainer_open() says where trainers do so by
 * themselves.
 * \param tensors  floating-point values in host memory, which are written to
 * \param names    of these, as cohive_trainer_describe() has them: "optimizer.N.STATISTIC" */
COHIVE_API int32_t cohive_statistics_make_usable(const cohive_tensor* tensors, const char* const* names, size_t count);

/* ---- Averagers */

/** Averages tensors with the peers of one prefix, in rounds, and shares states. */
typedef struct cohive_averager cohive_averager;
/** One round. */
typedef struct cohive_round cohive_round;

/** Begins to average under a name. Options, with the names of hivemind.DecentralizedAverager: prefix (required),
 * class_name (part of the protocol; that of the Python class), target_group_size (0: unbounded), min_group_size,
 * initial_group_bits, min_matchmaking_time, request_timeout, part_size_bytes, allreduce_timeout, sender_timeout,
 * reducer_timeout (seconds; 0: none; by default none, 15 and 30), bandwidth, min_vector_size, mode ("node", "client" or
 * "auxiliary"), declare_state_period; and averager_rank with min_compression_ratio for hivemind's
 * PowerSGDGradientAverager, which averages by low-rank factors.
 * \param tag      tells whose state an event COHIVE_EVENT_STATE asks for
 * \param tensors  `count` of them, whose shapes, dtypes, requires_grad and codecs are the schema; no data. Values
 * travel, and are averaged, as float32 */
COHIVE_API int32_t cohive_averager_open(cohive_swarm* swarm, const char* options, uint64_t tag,
                                        const cohive_tensor* tensors, size_t count, cohive_averager** averager);
/** The memory of a tensor, as float32: a round reads and writes it from its trigger to its end, and nothing else does.
 * It lives as long as the handle. */
COHIVE_API int32_t cohive_averager_buffer(cohive_averager* averager, size_t tensor, float** values, size_t* count);
/** Begins a round: a group is looked for at once. COHIVE_REFUSED while another round goes on.
 * \param gather   msgpack, which all members get
 * \param options  "timeout" (seconds to find a group; default 60), "scheduled_time" (Unix seconds), "allow_retries"
 * The ticket brings a map: "gathered", an array of [peer id as bytes, what it gave], "group_id", and what the round
 * was: "parts_total", "parts_failed", "bytes_sent", "bytes_received", "matchmaking" and "allreduce" (seconds). */
COHIVE_API int32_t cohive_averager_begin(cohive_averager* averager, const uint8_t* gather, size_t size,
                                         const char* options, cohive_round** round, cohive_ticket** ended);
/** The group's bits, text. */
COHIVE_API int32_t cohive_averager_group_bits(cohive_averager* averager, cohive_bytes* bits);
/** Sets them, between rounds. */
COHIVE_API int32_t cohive_averager_set_group_bits(cohive_averager* averager, const char* bits);
/** Whether others may download a state from here, and how recommendable it is. */
COHIVE_API int32_t cohive_averager_share(cohive_averager* averager, int32_t allowed, double priority);
/** Downloads the state of the best donor. Options: "timeout" (seconds), "max_bytes". The ticket brings a map:
 * "metadata", "donor" (bytes), "tensors" (how many); see cohive_ticket_tensor(). An averager with averager_rank
 * shares and takes over its factors by itself. */
COHIVE_API int32_t cohive_averager_download(cohive_averager* averager, const char* options, cohive_ticket** downloaded);
/** Ends it: the round that goes on is cancelled, other members are told, and are served for `seconds` at most. Other
 * calls of it answer COHIVE_CLOSED from then on. */
COHIVE_API int32_t cohive_averager_close(cohive_averager* averager, double seconds, cohive_ticket** closed);
/** Forgets the handle and its memory; closes it first, without telling anybody. What cohive_averager_close() has begun
 * goes on. */
COHIVE_API void cohive_averager_free(cohive_averager* averager);

/** Hands the tensors over, once: they are averaged as soon as there is a group. */
COHIVE_API int32_t cohive_round_trigger(cohive_round* round, double weight);
/** Changes the time when the group should form (Unix seconds). */
COHIVE_API int32_t cohive_round_reschedule(cohive_round* round, double unix_time);
/** 1 looking for a group, 2 awaiting the trigger, 3 running, 4 finished. */
COHIVE_API int32_t cohive_round_stage(cohive_round* round, int32_t* stage);
/** Forgets it, without cancelling it. */
COHIVE_API void cohive_round_free(cohive_round* round);

/** Answers COHIVE_EVENT_STATE: the state as it is now, which is copied. COHIVE_NOT_FOUND: nobody waits for it any more,
 * as where its swarm was left meanwhile.
 * \param metadata  msgpack of a map that is not empty; null: nothing is shared */
COHIVE_API int32_t cohive_state_answer(uint64_t tag, const uint8_t* metadata, size_t size, const cohive_tensor* tensors,
                                       size_t count);
/** A tensor of a state that was downloaded; it lives as long as the ticket. */
COHIVE_API int32_t cohive_ticket_tensor(cohive_ticket* ticket, size_t index, cohive_tensor* tensor);

/* ---- Progress of a run */

/** Tells the trainers of a run how far this one is, and reads how far they are. */
typedef struct cohive_tracker cohive_tracker;

/** Begins to report and to read. Options, with the names of hivemind's tracker_opts: run_id and target_batch_size
 * (required), client_mode, min_refresh_period, max_refresh_period, default_refresh_period, metadata_expiration
 * (seconds), expected_drift_peers, expected_drift_rate, performance_ema_alpha. Adds the validators of such records to
 * the DHT. */
COHIVE_API int32_t cohive_tracker_open(cohive_swarm* swarm, const char* options, cohive_tracker** tracker);
/** Tells what this peer has accumulated in its epoch. */
COHIVE_API int32_t cohive_tracker_report(cohive_tracker* tracker, uint64_t epoch, double samples);
/** Enters an epoch, with no samples. */
COHIVE_API int32_t cohive_tracker_enter(cohive_tracker* tracker, uint64_t epoch);
/** Goes on after a pause, such as a round, which counts for nobody's speed. */
COHIVE_API int32_t cohive_tracker_resume(cohive_tracker* tracker);
/** The run as it was seen last, a msgpack map: "epoch", "claimed" (the largest epoch that anybody claims), "samples"
 * and "own_samples" towards the epoch, "samples_per_second" and "own_samples_per_second", "peers", "clients" (among
 * them) and "eta", when the target will be reached (Unix seconds; infinite before the first look). */
COHIVE_API int32_t cohive_tracker_snapshot(cohive_tracker* tracker, cohive_bytes* progress);
/** Withdraws the report of this peer, and ends it. Other calls of it answer COHIVE_CLOSED from then on. */
COHIVE_API int32_t cohive_tracker_close(cohive_tracker* tracker, cohive_ticket** closed);
/** Forgets the handle; ends it first, without withdrawing anything. What cohive_tracker_close() has begun goes on. */
COHIVE_API void cohive_tracker_free(cohive_tracker* tracker);

/* ---- Trainers */

/** A part in a training run: counts samples with its peers, and at the end of each epoch averages gradients with them,
 * steps, and averages parameters. Calls of one trainer go one at a time; a second thread waits for the first. */
typedef struct cohive_trainer cohive_trainer;

/** Functions of the caller's, the only ones that the library calls: on the thread, and inside of the call, of
 * cohive_trainer_open(), _step(), _load(), _average(), _finish(), _restore() or _settle(). They may call
 * cohive_trainer_describe(), and nothing else of the same trainer. */
typedef struct cohive_trainer_calls {
  void* context; /**< that they are given */
  /** Steps with the mean gradients of all samples of all peers: one pointer to float32 values for each parameter, null
   * where no peer has a gradient; they live until it returns, and may be written to. `gradients` is null with local
   * updates: step with the gradients of the batch. Not 0: it has failed, and the call with it, with COHIVE_CANCELLED.
   */
  int32_t (*step)(void* context, float* const* gradients, uint64_t epoch);
  /** Takes over the state of another peer: its metadata as msgpack, its tensors in their order. Nothing in it has been
   * looked at, but that its floating-point values are finite. Not 0: it does not fit, and nothing was changed. */
  int32_t (*load)(void* context, const uint8_t* metadata, size_t size, const cohive_tensor* tensors, size_t count,
                  uint64_t epoch);
  /** Asked about every 100 ms by a call that waits. Not 0: it ends with COHIVE_CANCELLED; what it began goes on, and
   * the next call waits for it first. Buffers of reuse_grad_buffers are set to zero then: their sums count with what
   * goes on. May be null. */
  int32_t (*interrupted)(void* context);
  /** May be null. Else the caller adds up the gradients of its batches by itself, as where they are in the memory of a
   * GPU, and hands the sums over here: those of all batches since the last call. cohive_trainer_step() asks for them
   * before it waits, at the end of an epoch; its `gradients` only tell then whether the batch counts.
   * \param gradients  to be filled: one pointer for each parameter to float32 values, null where no batch had one. They
   *                   are read until the next call, or cohive_trainer_free(); with "device", whose memory they are in,
   *                   until the call that asks for them returns
   * \param samples    to be filled: of these batches; 0: there was none
   * \param scale      to be filled: what makes the values the mean over these samples, by division
   * With use_local_updates nothing is filled: the memory of parameters and what is beside them need not have what steps
   * have made of them before it is asked for here.
   * Not 0: it has failed, and the call with it, with COHIVE_CANCELLED. */
  int32_t (*sums)(void* context, const float** gradients, double* samples, double* scale);
} cohive_trainer_calls;

/** What a call has done. */
typedef struct cohive_step_report {
  uint64_t epoch;        /**< of this peer */
  uint64_t grad_group;   /**< peers whose gradients were averaged; 0: none but this one's, or not known yet */
  uint64_t state_group;  /**< the same for parameters */
  uint64_t bytes_sent;   /**< tensors of the rounds that this report is about */
  int32_t epoch_changed; /**< an epoch has ended in this call */
  int32_t loaded_state;  /**< the state of another peer was taken over; the batch did not count */
  int32_t updated;       /**< delayed work of an earlier epoch has come into place */
  int32_t cleared;       /**< buffers that are used again were set to zero */
} cohive_step_report;

/** Joins a run. Waits where a checkpoint is gone on from.
 *
 * Options, with the names of hivemind.Optimizer; times in seconds: run_id and target_batch_size (required, the latter
 * not with fit_my_link), matchmaking_time, averaging_timeout, allreduce_timeout, next_chunk_timeout,
 * load_state_timeout, shutdown_timeout, delay_state_averaging, delay_optimizer_step, delay_grad_averaging,
 * reuse_grad_buffers, use_local_updates, average_state_every, auxiliary, client_mode, share_state,
 * performance_ema_alpha, verbose, share_loss; of its tracker_opts min_refresh_period, max_refresh_period,
 * default_refresh_period, metadata_expiration, expected_drift_peers, expected_drift_rate and sharded_above (trainers;
 * 0: never); of its averager_opts request_timeout, part_size_bytes, min_group_size, sender_timeout, reducer_timeout and
 * min_vector_size, which are about rounds of outer steps with outer_lr. And cohive's own: outer_lr, outer_momentum,
 * outer_nesterov, outer_fragments (parts of the model that are averaged in turn, one in each epoch), outer_repair_every
 * and open_diloco (averages with OpenDiLoCo's trainers), all of them for steps of an outer optimizer, with
 * use_local_updates; fit_my_link (with these: the trainers agree on rounds that their links carry, on
 * target_batch_size, grad_codecs or both, as far as they are not given), outer_codec (how differences travel between
 * peers that ask for it: "block4", or "sparse2" as SparseLoCo has it, with an outer_momentum of 0), outer_aggregation
 * ("mean", "mean-of-senders", which is for sparse2 and its default, or "clipped-mean") and outer_clip_factor (of the
 * last two: times the median norm), full_state_every (parameters travel as 8-bit differences from their last average,
 * and as they are in one of so many rounds; 0: always as they are), target_group_size, bandwidth, verified_share,
 * clip_grad_norm (of the averaged gradients; not with use_local_updates, where the caller steps with gradients of its
 * own), averager_rank and min_compression_ratio (PowerSGD), grad_codecs and state_codecs (names: one for all, or one
 * for each tensor; the state is parameters, then what is beside them), native_steps (the library steps, as
 * cohive_trainer_describe() says), device (number of the GPU that parameters, statistics and sums of gradients are on,
 * where they are averaged and stepped then; with native_steps and `calls->sums`), checkpoint_dir, checkpoint_every,
 * checkpoint_keep, resume.
 * \param parameters  contiguous float32 values in host memory, which stay where they are until cohive_trainer_free()
 * \param beside      the same of what is averaged after the parameters: `dtype` and `requires_grad` name it in the
 *                    schema, its values are float32; `codec` "optimizer.N.STATISTIC", its name in checkpoints: only
 *                    steps change it, and averages that these cannot use do not take its place, as squares below zero
 */
COHIVE_API int32_t cohive_trainer_open(cohive_swarm* swarm, const char* options, const cohive_tensor* parameters,
                                       size_t count, const cohive_tensor* beside, size_t beside_count,
                                       const cohive_trainer_calls* calls, cohive_trainer** trainer);
/** How many GPUs a trainer's model may be on: 0 where there is no driver, and in a library without CUDA. */
COHIVE_API int32_t cohive_gpu_count(void);
/** For a model on a GPU: the caller queues its work on this stream, a cudaStream_t, from now on; until it is called, on
 * the default one. Between two calls of the trainer. */
COHIVE_API int32_t cohive_trainer_stream(cohive_trainer* trainer, void* stream);
/** Says what the state is, which newcomers download and checkpoints keep; before the first batch, and whenever it has
 * changed. The library reads it at any time, where it is: the caller changes parameters and statistics in its functions
 * alone, or tells cohive_trainer_changes() before.
 * \param metadata  msgpack of a map that is not empty, to which "epoch" is added
 * \param state     its tensors in the order in which newcomers get them; where `data` is that of a parameter, its
 *                  newest values. `codec` is how newcomers get it. Squares of small gradients are 0 in half precision:
 *                  let statistics travel as they are
 * \param names     of these tensors in checkpoints: "parameter.N", then "extra.N", then "optimizer.N.STATISTIC", by
 * number and name
 * \param steps     with native_steps: JSON, an array with an object for each parameter group: "name" ("sgd", "adam",
 *                  "adamw", "rmsprop", "adagrad" or "lamb") and its settings as torch.optim names them, "parameters":
 *                  how many; null without
 * \param statistics  with native_steps: four pointers for each parameter: its statistics (float32, as many as the
 *                  parameter has) in the order momentum_buffer; exp_avg, exp_avg_sq, max_exp_avg_sq; square_avg,
 *                  momentum_buffer, grad_avg; or sum, null where there is none; and the number of its steps, one
 *                  float32, or null */
COHIVE_API int32_t cohive_trainer_describe(cohive_trainer* trainer, const uint8_t* metadata, size_t size,
                                           const cohive_tensor* state, const char* const* names, size_t count,
                                           const char* steps, float* const* statistics);
/** After each batch: takes its gradients, and ends the epoch when it is time.
 * \param gradients  one pointer for each parameter to float32 values, the mean over the batch; null where it has none.
 *                   They are read before it returns. Null: the batch does not count, or it is an auxiliary peer's. With
 *                   reuse_grad_buffers they are the sums of the epoch's batches; see cohive_trainer_forget()
 * \param samples    of the batch
 * \param scale      of the loss, which the gradients have, too; 1: none. With reuse_grad_buffers it is the same in all
 *                   batches of an epoch */
COHIVE_API int32_t cohive_trainer_step(cohive_trainer* trainer, const float* const* gradients, int64_t samples,
                                       double scale, cohive_step_report* report);
/** With reuse_grad_buffers: the caller has lost the sums of the epoch, as where a batch has overflowed, and begins new
 * ones at zero. The samples that were counted are forgotten. */
COHIVE_API int32_t cohive_trainer_forget(cohive_trainer* trainer);
/** Waits for delayed work, and publishes it. The next report tells of it. */
COHIVE_API int32_t cohive_trainer_settle(cohive_trainer* trainer);
/** The caller is about to change parameters or statistics by itself, between two calls, or has done so: whoever reads
 * them as the state of the run asks again. `again`: 1 where it does so again and again; newcomers are given copies from
 * now on. */
COHIVE_API int32_t cohive_trainer_changes(cohive_trainer* trainer, int32_t again);
/** Downloads the state of the swarm if it is ahead. `loaded`: 1 if it was. Buffers that are used again are set to zero
 * where a call ends an epoch before its time, as this one, _restore() and _resume() do. */
COHIVE_API int32_t cohive_trainer_load(cohive_trainer* trainer, int32_t* loaded);
/** Averages the parameters once more with the peers that do the same. `group`: its members; 0: no group. */
COHIVE_API int32_t cohive_trainer_average(cohive_trainer* trainer, uint64_t* group);
/** Ends the training together with the peers that end theirs now. Only _status(), _close() and _free() may follow. */
COHIVE_API int32_t cohive_trainer_finish(cohive_trainer* trainer, uint64_t* group);
/** Enters an epoch whose state the caller has put into the memory, between two calls, after cohive_trainer_settle() and
 * cohive_trainer_changes(). */
COHIVE_API int32_t cohive_trainer_restore(cohive_trainer* trainer, uint64_t epoch);
/** Writes the state into a file, or goes on from one (`epoch`: its own). */
COHIVE_API int32_t cohive_trainer_save(cohive_trainer* trainer, const char* path);
COHIVE_API int32_t cohive_trainer_resume(cohive_trainer* trainer, const char* path, uint64_t* epoch);
/** Shows the loss of a batch to monitors. */
COHIVE_API int32_t cohive_trainer_loss(cohive_trainer* trainer, double loss);
/** A msgpack map; waits for nothing: "epoch", the run as it was seen last ("global_epoch", "samples", "own_samples",
 * "target_batch_size", "samples_per_second", "peers", "clients", "eta"), and counts since the beginning: "grad_rounds",
 * "grad_rounds_failed", "state_rounds", "state_rounds_failed", "state_downloads", "bytes_sent", "bytes_received",
 * "seconds_synchronised". */
COHIVE_API int32_t cohive_trainer_status(cohive_trainer* trainer, cohive_bytes* status);
/** Leaves the run within shutdown_timeout; a call that another thread waits in ends first, with COHIVE_CLOSED. Waits.
 */
COHIVE_API int32_t cohive_trainer_close(cohive_trainer* trainer);
/** Forgets the handle; closes it first. When it returns, nothing uses the caller's memory. */
COHIVE_API void cohive_trainer_free(cohive_trainer* trainer);

#ifdef __cplusplus
}
#endif

#endif
