package fdpass

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/cgo"
	"syscall"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/handshake"
)

const (
	// callPatience bounds the handshake of a Call whose context does not: the other
	// process may be stopped.
	callPatience = time.Minute

	// maxTries is how often a Call dials a server that hangs up before it has answered. One
	// that has more callers than it can serve in time does so, and so it does where this
	// process gets no CPU for too long. To be asked twice does a handler no harm.
	maxTries = 5
)

// errHungUp means that the other end hung up in the handshake, and errNoAnswer that it hung
// up later.
var (
	errHungUp   = errors.New("the other end hung up in the handshake")
	errNoAnswer = errors.New("the other end hung up instead of answering")
)

// Call asks the server of that name and passes the answer to take, which must be
// done with the answer's file when it returns. Call returns take's error as it
// is.
//
// Errors: ErrInvalid for a name that no server has or a request over [MaxBody],
// ErrTimeout and ErrAborted when ctx ends first, ErrSystem when this process has no
// descriptor left, ErrRemote when nobody listens there or the other end is not of the same
// user and group.
func Call(ctx context.Context, key Key, name string, request []byte, take func(Answer) error) error {
	return inquire(ctx, key, name, request, func(a answered) error {
		defer a.conn.Close()
		return take(a.Answer)
	})
}

// Connect is Call for an answer with which the connection stays open: take gets the
// connection too, which it owns. It has no deadline, is of packets, and hangs up when the
// process at the other end dies.
//
// Errors: as for Call.
func Connect(ctx context.Context, key Key, name string, request []byte, take func(Answer, *net.UnixConn) error) error {
	return inquire(ctx, key, name, request, func(a answered) error { return take(a.Answer, a.conn) })
}

// inquire asks, and passes what was answered to take, which owns the connection.
func inquire(ctx context.Context, key Key, name string, request []byte, take func(answered) error) error {
	op := fmt.Sprintf("ask at the socket %q", name)
	if !ValidName(name) {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "no server has such a name")
	}
	if len(request) > MaxBody {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the request has %d bytes, at most %d are allowed", len(request), MaxBody)
	}
	member := key.member(name, callPatience)
	for try := 1; ; try++ {
		answer, err := ask(ctx, name, member, request)
		switch {
		case err == nil:
			if answer.File != nil {
				defer answer.File.Close()
			}
			return take(answer)
		case !errors.Is(err, errHungUp) && !errors.Is(err, errNoAnswer) || try == maxTries || ctx.Err() != nil:
			return failure(ctx, op, err)
		}
		select {
		case <-time.After(time.Duration(try) * 5 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// answered is an answer and the connection on which it came: the other end holds an
// answer's value until that is closed.
type answered struct {
	Answer
	conn *net.UnixConn
}

// ask dials and asks once.
func ask(ctx context.Context, name string, member *handshake.Member, request []byte) (answered, error) {
	conn, err := dial(ctx, name)
	if err != nil {
		return answered{}, err
	}
	answer, err := exchange(ctx, conn, member, request)
	if err != nil {
		conn.Close()
		return answered{}, err
	}
	return answered{answer, conn}, nil
}

// failure returns the error of an exchange that did not succeed.
func failure(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return mscclgo.FromContext(ctx, op, "the other end did not answer")
	}
	switch {
	case handshake.Shortage(err):
		return mscclgo.Errorf(mscclgo.ErrSystem, op, "%w", err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return mscclgo.Errorf(mscclgo.ErrRemote, op, "nobody listens there: the process has ended, has closed it, or has another network namespace: %w", err)
	case errors.Is(err, errHungUp):
		return mscclgo.Errorf(mscclgo.ErrRemote, op, "the other end hung up %d times: it is closing, is too busy to answer in time, or has another secret or version: %w", maxTries, err)
	case errors.Is(err, errNoAnswer):
		return mscclgo.Errorf(mscclgo.ErrRemote, op, "the other end hung up %d times, the last time instead of answering: it is closing, or has no descriptor left, or one of the two is too busy to answer in time: %w", maxTries, err)
	}
	return mscclgo.Errorf(mscclgo.ErrRemote, op, "%w", err)
}

// hungUp reports whether err means that the other end closed the connection.
func hungUp(err error) bool {
	return errors.Is(err, handshake.ErrRejected) || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// dial connects, and waits where the server has too many to accept.
func dial(ctx context.Context, name string) (*net.UnixConn, error) {
	for {
		conn, err := new(net.Dialer).DialUnix(ctx, "unixpacket", nil, address(name))
		if err == nil || !errors.Is(err, syscall.EAGAIN) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(time.Millisecond):
		}
	}
}

// exchange asks and returns the answer, whose file is the caller's.
func exchange(ctx context.Context, conn *net.UnixConn, member *handshake.Member, request []byte) (Answer, error) {
	sameProcess, err := sameUser(conn)
	if err != nil {
		return Answer{}, err
	}
	if _, err := member.Client(ctx, conn, nil); hungUp(err) {
		return Answer{}, fmt.Errorf("%w: %w", errHungUp, err)
	} else if err != nil {
		return Answer{}, err
	}
	stop := handshake.EndWith(ctx, conn)
	if _, err := conn.Write(encodeRequest(request)); err != nil {
		stop()
		if hungUp(err) {
			err = fmt.Errorf("%w: %w", errNoAnswer, err)
		}
		return Answer{}, err
	}
	packet := make([]byte, maxAnswer+1)
	rights := make([]byte, syscall.CmsgSpace(4))
	n, oobn, _, _, err := conn.ReadMsgUnix(packet, rights)
	files, filesErr := received(rights[:oobn])
	answer, err := open(packet[:max(n, 0)], files, sameProcess, errors.Join(err, filesErr))
	if !stop() && err == nil {
		err = ctx.Err() // the connection has a deadline now
	}
	if hungUp(err) {
		err = fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	if err != nil {
		for _, f := range files {
			f.Close()
		}
	}
	return answer, err
}

// open checks what was received together.
func open(packet []byte, files []*os.File, sameProcess bool, err error) (Answer, error) {
	if err != nil {
		return Answer{}, err
	}
	in, err := decodeAnswer(packet)
	if err != nil {
		return Answer{}, err
	}
	if len(files) != int(in.files) {
		// The other end sends them all: see MSG_CTRUNC in recvmsg(2).
		return Answer{}, fmt.Errorf("%d files came with an answer of %d: this process has too many open: %w", len(files), in.files, syscall.EMFILE)
	}
	answer := Answer{Body: in.body}
	if len(files) == 1 {
		answer.File = files[0]
	}
	if in.value != 0 {
		if !sameProcess {
			return Answer{}, errors.New("the answer is a Go value of another process")
		}
		answer.Value = cgo.Handle(in.value).Value()
	}
	return answer, nil
}

// received returns the files of a packet's control messages (SCM_RIGHTS,
// unix(7)). They are closed on exec already.
func received(control []byte) ([]*os.File, error) {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, m := range messages {
		fds, err := syscall.ParseUnixRights(&m)
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}
