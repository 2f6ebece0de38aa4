// SPDX-License-Identifier: GPL-2.0-or-later
//
// Records the accesses of one program inside the machine, each with its true host physical address, and holds
// the machine still while its page tables are read. What is said, and when, is crate strata-wire's module
// machine: the plugin of the other emulator (crate strata-machine-plugin) says the same.
//
// The program is told apart by address: it, and nothing else in the machine, accesses the windows from user
// code. Who stores to the page of markers may be another program, which starts it.
//
// Environment: BOCHS_TRACE_SOCKET, the reader's socket; BOCHS_TRACE_WINDOWS, START-END in hexadecimal with
// commas between; BOCHS_TRACE_SKIP and BOCHS_TRACE_LIMIT, numbers of accesses; BOCHS_TRACE_PATIENCE, seconds that
// a reader may take that is there and does nothing. Without the first, nothing is watched.

#include "bochs.h"
#include "cpu/cpu.h"

#if BX_INSTRUMENTATION

#include "protocol.h"

#include <cstring>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>
#include <vector>

bool strata_watches = false;
bool strata_records = false;

namespace {

struct Window {
  Bit64u start, end;
};

int reader = -1;
std::vector<Window> windows;
Bit64u to_skip, left_to_record, skip = 0, limit = ~Bit64u(0);
Bit64u instructions = 0;

// Two words an access, as Placed::words() has them.
Bit64u pending[2 * STRATA_MAX_ACCESSES];
unsigned words = 0;

void give_up(int error)
{
  const bool silent = error == EAGAIN || error == EWOULDBLOCK;
  const char *why = error == 0 ? "it is gone" : silent ? "it is silent" : strerror(error);
  fprintf(stderr, "strata: nobody reads the accesses any more (%s); the machine goes on\n", why);
  close(reader);
  reader = -1;
  strata_watches = strata_records = false;
}

bool send_all(const void *bytes, size_t length)
{
  const char *at = (const char *) bytes;
  while (length > 0) {
    ssize_t sent = send(reader, at, length, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) {
      give_up(errno);
      return false;
    }
    at += sent;
    length -= sent;
  }
  return true;
}

// A frame: kind and length, then two pieces one after the other.
bool tell(Bit32u kind, const void *first, Bit32u first_bytes, const void *second = NULL, Bit32u second_bytes = 0)
{
  if (reader < 0) return false;
  Bit32u head[2] = { kind, first_bytes + second_bytes };
  return send_all(head, sizeof(head)) && send_all(first, first_bytes) && send_all(second, second_bytes);
}

void flush()
{
  tell(STRATA_ACCESSES, &instructions, sizeof(instructions), pending, words * sizeof(pending[0]));
  instructions = 0;
  words = 0;
}

// Holds the machine until the reader has looked, or is gone, or has been silent for too long.
void freeze(Bit8u why)
{
  flush();
  strata_records = false;
  if (!tell(STRATA_FROZEN, &why, 1)) return;
  char answer = STRATA_GOODBYE;
  ssize_t got;
  do {
    got = recv(reader, &answer, 1, 0);
  } while (got < 0 && errno == EINTR);
  if (got != 1) {
    give_up(got == 0 ? 0 : errno);
  } else if (answer == STRATA_GOODBYE) {
    close(reader);
    reader = -1;
    strata_watches = false;
  }
}

void mark(Bit64u code)
{
  if (code == STRATA_START && !strata_records) {
    to_skip = skip;
    left_to_record = limit;
    instructions = 0;
    strata_records = tell(STRATA_STARTED, NULL, 0);
  } else if (code == STRATA_STOP && strata_records) {
    freeze(STRATA_BY_MARKER);
  }
}

// An access as Access::bits() has it, and where its first byte is.
void record(Bit64u lin, Bit64u phy, unsigned len, bool store)
{
  if (!strata_records) return;
  if (to_skip > 0) {
    to_skip--;
    instructions = 0;
    return;
  }
  unsigned size_log2 = 0;
  while ((1u << size_log2) < len && size_log2 < 7) size_log2++;
  const Bit64u address = lin & ((BX_CONST64(1) << 57) - 1);
  pending[words++] = Bit64u(store) << 63 | Bit64u(size_log2) << 57 | address;
  pending[words++] = phy & ((BX_CONST64(1) << 52) - 1);
  if (--left_to_record == 0) {
    freeze(STRATA_BY_LIMIT);
  } else if (words == 2 * STRATA_MAX_ACCESSES) {
    flush();
  }
}

void fail(const char *what)
{
  fprintf(stderr, "strata: %s\n", what);
  exit(1);
}

Bit64u number(const char *name, Bit64u otherwise)
{
  const char *text = getenv(name);
  return text == NULL ? otherwise : strtoull(text, NULL, 10);
}

} // namespace

void strata_start(void)
{
  const char *path = getenv("BOCHS_TRACE_SOCKET");
  if (path == NULL) return;
  struct sockaddr_un address;
  memset(&address, 0, sizeof(address));
  address.sun_family = AF_UNIX;
  if (strlen(path) >= sizeof(address.sun_path)) fail("the path of BOCHS_TRACE_SOCKET is too long");
  strcpy(address.sun_path, path);
  reader = socket(AF_UNIX, SOCK_STREAM, 0);
  if (reader < 0 || connect(reader, (struct sockaddr *) &address, sizeof(address)) < 0)
    fail("nobody listens at BOCHS_TRACE_SOCKET; start the reader before the machine");
  struct timeval patience = { (time_t) number("BOCHS_TRACE_PATIENCE", STRATA_PATIENCE_SECONDS), 0 };
  setsockopt(reader, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  setsockopt(reader, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  const char *text = getenv("BOCHS_TRACE_WINDOWS");
  while (text != NULL && *text != 0) {
    char *rest;
    Window window;
    window.start = strtoull(text, &rest, 16);
    window.end = *rest == '-' ? strtoull(rest + 1, &rest, 16) : 0;
    if (window.end <= window.start || (*rest != ',' && *rest != 0)) fail("BOCHS_TRACE_WINDOWS is no list of START-END");
    windows.push_back(window);
    text = *rest == ',' ? rest + 1 : rest;
  }
  skip = number("BOCHS_TRACE_SKIP", 0);
  limit = number("BOCHS_TRACE_LIMIT", ~Bit64u(0));
  Bit32u version = STRATA_VERSION;
  strata_watches = tell(STRATA_HELLO, &version, sizeof(version)) && tell(STRATA_ARMED, NULL, 0);
}

void strata_end(void)
{
  if (reader >= 0) close(reader);
  reader = -1;
}

void strata_instruction(unsigned cpu)
{
  if (BX_CPU(cpu)->user_pl) instructions++;
}

void strata_access(unsigned cpu, Bit64u lin, Bit64u phy, unsigned len, unsigned rw)
{
  if (!BX_CPU(cpu)->user_pl) return;
  if (lin - STRATA_MARK_AT < STRATA_MARK_BYTES) {
    if (rw == BX_WRITE) mark((lin - STRATA_MARK_AT) / 8);
    return;
  }
  if (!strata_records) return;
  for (const Window &window : windows) {
    if (lin < window.start || lin >= window.end) continue;
    if (rw == BX_READ || rw == BX_RW) record(lin, phy, len, false);
    if (rw == BX_WRITE || rw == BX_RW) record(lin, phy, len, true);
    return;
  }
}

#endif
