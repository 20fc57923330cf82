package fifo

// Trigger is what a GPU thread asks of the host. Its fields travel unchanged;
// what they mean is for who serves the ring. See Trigger in <mscclgo/fifo.cuh>.
type Trigger struct {
	A, B, C uint64
	Detail  uint64 // 52 bits
	Kind    uint8  // not 0
}

// FirstUserKind is the first of the kinds, up to 255, that the library never
// uses.
const FirstUserKind = 128

// An entry of the ring is four words. The top bit of each is the lap's tag; the
// top bits of A, B and C are with Kind and Detail in the last word:
//
//	tag 63 | kind 55..62 | C 54 | B 53 | A 52 | detail 0..51
const (
	entryWords = 4
	entryBytes = 8 * entryWords
	tagBit     = 1 << 63
	detailMask = 1<<52 - 1
)

// decode gives the trigger of an entry's words.
func decode(w [entryWords]uint64) Trigger {
	const payload = tagBit - 1
	last := w[3]
	return Trigger{
		A:      w[0]&payload | last>>52<<63,
		B:      w[1]&payload | last>>53<<63,
		C:      w[2]&payload | last>>54<<63,
		Detail: last & detailMask,
		Kind:   uint8(last >> 55),
	}
}
