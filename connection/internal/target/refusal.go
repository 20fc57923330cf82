package target

import "fmt"

// Reason is why what a peer sent was refused. Peers tell each other its number.
type Reason uint8

// The reasons.
const (
	Closed   Reason = 1 // the memory was closed
	Unknown  Reason = 2 // there never was such a memory
	Range    Reason = 3 // it lies outside the memory, or is not aligned
	Protocol Reason = 4 // it breaks the protocol otherwise
	Failed   Reason = 5 // the device could not take it
)

// Valid reports whether r is one of the reasons.
func (r Reason) Valid() bool { return r >= Closed && r <= Failed }

// String returns the reason for the peer's error.
func (r Reason) String() string {
	if !r.Valid() {
		return fmt.Sprintf("reason %d", uint8(r))
	}
	return [...]string{
		Closed:   "it was closed",
		Unknown:  "there is no such memory",
		Range:    "it lies outside the memory, or the word is not aligned to 8 bytes",
		Protocol: "it does not fit what was sent before; the log of that rank has more",
		Failed:   "its device failed; the log of that rank has more",
	}[r]
}

// Refusal is why this rank refuses what a peer sent.
type Refusal struct {
	Reason Reason
	text   string
}

// Error returns the text for this rank.
func (e *Refusal) Error() string { return e.text }

// Refuse returns a [Refusal].
func Refuse(r Reason, format string, args ...any) error {
	return &Refusal{r, fmt.Sprintf(format, args...)}
}

// Gone returns the Refusal of a frame for a memory that Hold does not hold any more.
func Gone(m *Memory) error {
	return Refuse(Closed, "it sent a frame for memory %d, which was closed meanwhile", m.ID)
}
