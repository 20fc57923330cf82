package collective

// What groups of sends and receives take of the device memory of a rank on one host by default: mostMemory at most,
// in communicators of more than fewRanks. Communicators of fewer have sizes that were measured.
const (
	mostMemory      = 64 << 20
	fewRanks        = 8
	slotStep        = 1 << 10
	leastPacketSlot = 16 << 10
)

// What a rank takes by default where there are several hosts, whatever their number: together with a staging
// and an inbox for the sums of other hosts, of defaultScratch each, and with what is small, less than 256 MiB.
const (
	farRoutes = 12 << 20
	farGroups = 56 << 20
)

// slotIn returns the bytes of each of so many slots: as many as are wanted, or as there is room for besides
// other bytes.
func slotIn(room, want, slots, others uint64) uint64 {
	return min(want, max((room-others)/slots/slotStep, 1)*slotStep)
}

// fitting returns the sizes for a rank with `near` ranks on its host, itself included, and `far` on others.
// On several hosts they leave a part of farGroups to posts.
func (s groupSizes) fitting(near, far uint64) groupSizes {
	room, bare := uint64(mostMemory), s
	if far > 0 {
		room = farGroups / 4 * 3
	} else if near <= fewRanks {
		return s
	}
	s.packetSlot = packetSlotOf(near, far)
	bare.slot, bare.packetSlot = 0, s.packetSlot
	s.slot = slotIn(room, s.slot, near*lanesOf(s.lanes, near, far)*groupSlots, bare.boxBytes(near, far))
	return s
}

// packetSlotOf returns the bytes of a slot for packets by default.
func packetSlotOf(near, far uint64) uint64 {
	if near > fewRanks || far > 0 {
		return leastPacketSlot
	}
	return defaultGroupSizes.packetSlot
}

// boxBytes returns the bytes of a box, with the table of messages.
func (s groupSizes) boxBytes(near, far uint64) uint64 {
	lanes := lanesOf(s.lanes, near, far)
	_, _, _, end := s.boxLayout(near, lanes)
	return end + near*lanes*groupSlots*s.slot + loadedMessages*workMessageBytes
}

// largestBox returns the bytes of the largest box by default of a rank of these hosts.
func largestBox(hosts [][]int, ranks int) (most uint64) {
	for _, host := range hosts {
		near, far := uint64(len(host)), uint64(ranks-len(host))
		most = max(most, defaultGroupSizes.fitting(near, far).boxBytes(near, far))
	}
	return most
}

// postOf returns the bytes of a post among so many ranks, whose outboxes and inboxes have the bytes of the scratch
// each; or by default, of a rank that has other bytes besides, what is left of `most`.
func postOf(ranks, scratch, most, others uint64) uint64 {
	room := scratch
	if scratch == defaultScratch {
		room = (most - others) / 2
	}
	return min(max(room/ranks/postsOfPair, leastPost), mostPost) / 16 * 16
}
