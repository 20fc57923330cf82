// Sets of channels, MemoryChannelSet and PortChannelSet: one rank's channels to all its peers. A
// kernel takes them by value.
//
//   auto& channel = set.to(peer, blockIdx.x);
//
// Peers are counted from 0 in the order of their ranks, so that in a set of channels to all
// ranks a peer's index is its rank.
#pragma once

#include <mscclgo/check.cuh>

namespace mscclgo {
namespace detail {

// channelOf returns a channel of a set. An index outside the set ends the kernel, with checks
// (check.cuh).
template <class Set>
MSCCLGO_DEVICE auto channelOf(const Set& set, uint32_t peer, uint32_t channel, Site site)
    -> decltype(*set.handles) {
#if defined(MSCCLGO_CHECK)
  if (peer >= set.size || channel >= set.perPeer)
    fault(set.watch, kNoPeer, site, "channel ", channel, " to peer ", peer, " of a set, which has ",
          set.perPeer, " to each of ", set.size, " peers");
#else
  (void)site;
#endif
  return set.handles[channel * set.size + peer];
}

}  // namespace detail
}  // namespace mscclgo
