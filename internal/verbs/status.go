package verbs

import "fmt"

// StatusText returns the status of a completion in words.
func StatusText(status uint32) string {
	if int(status) < len(statusWords) {
		return statusWords[status]
	}
	return fmt.Sprintf("status %d", status)
}

// The statuses that callers distinguish, of ibv_poll_cq(3).
const (
	StatusSuccess         = 0
	StatusFlushed         = 5  // the queue pair had failed before
	StatusRetriesExceeded = 12 // no acknowledgement came
)

var statusWords = [...]string{
	"success",
	"local length error",
	"local queue pair operation error",
	"local EE context operation error",
	"local protection error",
	"flushed, since the queue pair had failed",
	"memory window bind error",
	"bad response",
	"local access error",
	"the peer finds the request invalid",
	"remote access error: the peer has closed the memory, or it is too small or not writable; its process lives",
	"remote operation error",
	"retries exceeded: the peer does not answer: its process has ended, it has failed the connection, which its log explains, or the network is down",
	"receiver-not-ready retries exceeded: the peer does not take messages",
	"local RDD violation",
	"remote invalid read request",
	"the peer aborted",
	"invalid EE context number",
	"invalid EE context state",
	"fatal error",
	"response timeout",
	"general error",
}

// Remote reports whether a status is due to the peer or the network, rather than this
// side.
func Remote(status uint32) bool {
	switch status {
	case 7, 9, 10, 11, 12, 13, 15, 16, 20:
		return true
	}
	return false
}
