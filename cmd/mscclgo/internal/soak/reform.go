package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/registeredmem"
)

const (
	stepsAgain = 8                // of those who go on
	settle     = 3 * time.Second  // for survivors that come late; if all come it is not waited for
	reforming  = 25 * time.Second // until they work again
)

// twice does the steps of the task. If the group fails the rank goes on in another, of those
// who come to the server of the task, with the same memory and channels. It returns how that went:
// "right", "" where there was none, or why not; and the first group's error.
func (w *worker) twice(ctx context.Context) (again string, err error) {
	w.comm, err = communicator.Join(ctx, w.options())
	if err == nil {
		if err = w.work(ctx); err == nil {
			return "", errors.Join(w.leave(), w.close(), w.comm.Close())
		}
	} else {
		w.failedAt = time.Now().UnixNano()
	}
	ctx, cancel := context.WithTimeout(ctx, reforming)
	defer cancel()
	if why := w.goOn(ctx); why != nil {
		return why.Error(), err
	}
	return "right", err
}

// goOn is the rank's second life.
func (w *worker) goOn(ctx context.Context) (err error) {
	id, err := bootstrap.ParseUniqueID(w.Elastic)
	if err != nil {
		return err
	}
	member, err := bootstrap.NewMember(bootstrap.Options{ID: id, HeartbeatTimeout: w.Heartbeat})
	if err != nil {
		return err
	}
	defer member.Close()
	w.leave() // what failed may say so
	boot, err := member.Next(ctx)
	if err != nil {
		return err
	}
	next, err := w.nextGroup(ctx, boot)
	if err != nil {
		boot.Abort(err)
		return errors.Join(err, boot.Close())
	}
	w.comm = next
	w.Fault, w.Victim, w.Steps = "", -1, stepsAgain
	w.Seed += 1 << 40
	err = w.work(ctx)
	return errors.Join(err, w.leave(), w.close(), next.Close(), boot.Close(), w.device())
}

// nextGroup makes this rank one of the next group: by Reform of the group that it was in, or
// as a newcomer if it has been in none.
func (w *worker) nextGroup(ctx context.Context, boot *bootstrap.Bootstrap) (*communicator.Communicator, error) {
	if w.comm != nil {
		var streams []*gpu.Stream
		if w.stream != nil {
			streams = append(streams, w.stream)
		}
		return w.comm.Reform(ctx, boot, streams...)
	}
	env, err := bootstrap.FromEnv(os.LookupEnv)
	if err != nil {
		return nil, err
	}
	name, err := gpu.Assign(w.Device, env.LocalRank)
	if err != nil {
		return nil, err
	}
	dev, err := gpu.Open(name)
	if err != nil {
		return nil, err
	}
	o := w.options()
	if o.Transports, err = registeredmem.TransportsFromEnv(0); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	comm, err := communicator.New(ctx, boot, dev, o)
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	w.device = dev.Close
	return comm, nil
}
