/* A swarm of two peers in one process: one stores a value in the DHT, the other finds it. Keys and values are msgpack.
 */
#include <cohive/cohive.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Ends the program with cohive's sentence where a call has failed. */
static void must(int code, const char* what) {
  if (code == COHIVE_OK) return;
  fprintf(stderr, "%s: %s (%s)\n", what, cohive_last_error(), cohive_code_name(code));
  exit(1);
}

/* Waits for what was begun, half a minute at most. */
static cohive_ticket* ended(cohive_ticket* ticket, const char* what) {
  int code = cohive_ticket_wait(ticket, 30000);
  if (code == COHIVE_PENDING) {
    fprintf(stderr, "%s: not done after 30 s\n", what);
    exit(1);
  }
  must(code, what);
  return ticket;
}

/* Finds "/ip4/127.0.0.1/..." in a peer's status: a real program would use a msgpack library. */
static void address_of(cohive_ticket* joined, char* address, size_t room) {
  const uint8_t* data = NULL;
  size_t size = 0, length = 0, at;
  must(cohive_ticket_result(joined, &data, &size), "status");
  for (at = 0; at + 15 < size && memcmp(data + at, "/ip4/127.0.0.1/", 15) != 0; ++at) continue;
  while (at + length < size && length + 1 < room && data[at + length] >= 0x20 && data[at + length] < 0x7f) ++length;
  memcpy(address, data + at, length);
  address[length] = 0;
}

/* [["greeting", "hello", expiration]] */
static size_t record_of(uint8_t* bytes, double expiration) {
  static const char kHead[] = "\x91\x93\xa8greeting\xa5hello\xcb";
  const size_t head = sizeof kHead - 1;
  uint64_t bits;
  int i;
  memcpy(bytes, kHead, head);
  memcpy(&bits, &expiration, sizeof bits);
  for (i = 0; i < 8; ++i) bytes[head + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
  return head + 8;
}

int main(void) {
  cohive_swarm *first = NULL, *second = NULL;
  cohive_ticket* ticket = NULL;
  char address[512], options[1024];
  uint8_t record[64];
  const uint8_t* found = NULL;
  size_t size = 0;

  if (cohive_abi_version() != COHIVE_ABI_VERSION) return 1;
  must(cohive_log_configure("{\"level\": \"warn\"}"), "log");

  must(
      cohive_swarm_open("{\"bootstrap\": true, \"host_maddrs\": [\"/ip4/127.0.0.1/tcp/0\"]}", NULL, 0, &first, &ticket),
      "open");
  address_of(ended(ticket, "begin a swarm"), address, sizeof address);
  cohive_ticket_free(ticket);
  printf("To join this swarm: INITIAL_PEERS=%s\n", address);

  snprintf(options, sizeof options, "{\"initial_peers\": [\"%s\"], \"host_maddrs\": [\"/ip4/127.0.0.1/tcp/0\"]}",
           address);
  must(cohive_swarm_open(options, NULL, 0, &second, &ticket), "open");
  cohive_ticket_free(ended(ticket, "join the swarm"));

  size = record_of(record, (double)time(NULL) + 60);
  must(cohive_dht_store(first, record, size, NULL, &ticket), "store");
  cohive_ticket_free(ended(ticket, "store"));

  must(cohive_dht_get(second, (const uint8_t*)"\x91\xa8greeting", 10, "{\"latest\": true}", &ticket), "get");
  must(cohive_ticket_result(ended(ticket, "get"), &found, &size), "get");
  if (size < 8 || memcmp(found, "\x91\x92\xa5hello", 8) != 0) {
    fprintf(stderr, "the second peer has found something else\n");
    return 1;
  }
  printf("The second peer found: %.5s\n", (const char*)found + 3);
  cohive_ticket_free(ticket);

  must(cohive_swarm_close(second, &ticket), "close");
  cohive_ticket_free(ended(ticket, "leave"));
  must(cohive_swarm_close(first, &ticket), "close");
  cohive_ticket_free(ended(ticket, "leave"));
  cohive_swarm_free(second);
  cohive_swarm_free(first);
  return 0;
}
