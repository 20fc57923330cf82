package channel

// PipeSize is the size of a pipe's ring, the same at both ends. The zero value is the
// default.
type PipeSize struct {
	Slots int // a power of two up to 4096; 0 means 8
	// SlotBytes is a multiple of 128 up to 1 TiB. 0 means 128 KiB, and less for communicator.Pipes of many pipes.
	SlotBytes uint64
}

// PipePoolStats is how a pool is used.
type PipePoolStats struct {
	Bytes   uint64 // of the memory
	ForEnds uint64 // bytes of it for the control words and slots of ends
	Taken   uint64 // bytes that ends take, for communicator.Communicator.PipePool
	Lots    uint64 // pieces that messages borrow
	Lent    uint64 // lots that messages under way have
	Asked   uint64 // how often a message was to borrow a lot
	Refused uint64 // how often a message found none free, of all or of the 64 that it tried, and took its pipe's own slots
}
