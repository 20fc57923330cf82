// The functions of the API that need no function of Go of their own; exports.c has the others.
#include "mscclgo.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

uint32_t mscclgo_version(void) { return MSCCLGO_VERSION; }

const char* mscclgo_version_text(void) {
  return "v" TEXT(MSCCLGO_VERSION_MAJOR) "." TEXT(MSCCLGO_VERSION_MINOR) "." TEXT(MSCCLGO_VERSION_PATCH);
}

const char* mscclgo_status_name(mscclgo_status status) {
  switch (status) {
    case MSCCLGO_OK:
      return "ok";
    case MSCCLGO_INVALID:
      return "invalid use";
    case MSCCLGO_TIMEOUT:
      return "timeout";
    case MSCCLGO_ABORTED:
      return "aborted";
    case MSCCLGO_REMOTE:
      return "remote failure";
    case MSCCLGO_UNSUPPORTED:
      return "unsupported";
    case MSCCLGO_SYSTEM:
      return "system error";
  }
  return "unknown status";
}

mscclgo_status mscclgo_send(mscclgo_group group, mscclgo_stream stream, const void* in, uint64_t count,
                            mscclgo_type type, int peer) {
  mscclgo_message one = {stream, (void*)in, count, type, peer, MSCCLGO_SEND};
  return mscclgo_messages_launch(group, &one, 1);
}

mscclgo_status mscclgo_recv(mscclgo_group group, mscclgo_stream stream, void* out, uint64_t count,
                            mscclgo_type type, int peer) {
  mscclgo_message one = {stream, out, count, type, peer, MSCCLGO_RECV};
  return mscclgo_messages_launch(group, &one, 1);
}
