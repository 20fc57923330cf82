package main

// #include "process.h"
import "C"

import (
	"context"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
)

//export capi_elastic_create
func capi_elastic_create(address *C.char, o *C.mscclgo_elastic_options, result *C.uintptr_t) C.mscclgo_status {
	const op = "open an elastic server"
	return call(func() error {
		if err := isNull(op, unsafe.Pointer(address), unsafe.Pointer(result)); err != nil {
			return err
		}
		options := bootstrap.ElasticOptions{Logger: logger()}
		if o != nil {
			if o.settle_ms < 0 || o.settle_ms > maxMilliseconds {
				return invalid(op, "settle_ms is %d, not from 0 to %d", int64(o.settle_ms), maxMilliseconds)
			}
			options.Min, options.Max = int(o.least), int(o.most)
			options.Settle = time.Duration(o.settle_ms) * time.Millisecond
			if o.id != nil {
				var err error
				if options.ID, err = bootstrap.ParseUniqueID(C.GoString(o.id)); err != nil {
					return err
				}
			}
		}
		readEnvironment()
		e, err := bootstrap.NewElastic(C.GoString(address), options)
		if err != nil {
			return err
		}
		objects.add(nil, anElastic, e, e.Close).store(result)
		return nil
	})
}

//export capi_elastic_id
func capi_elastic_id(handle C.uintptr_t, id *C.char, bytes C.size_t) C.mscclgo_status {
	const op = "get the id of an elastic server"
	return call(func() error {
		return of(op, anElastic, handle, func(_ *object, e *bootstrap.Elastic) error {
			return storeID(op, e.ID(), id, bytes)
		})
	})
}

//export capi_elastic_destroy
func capi_elastic_destroy(handle C.uintptr_t) C.mscclgo_status {
	return call(func() error { return objects.destroy("close an elastic server", anElastic, handle) })
}

// member is what the handle of a member stands for.
type member struct {
	*bootstrap.Member
	options     communicator.Options // of its first group
	collectives collective.Options
	localRank   int
}

//export capi_member_create
func capi_member_create(id *C.char, o *C.mscclgo_group_options, c *C.mscclgo_group_config, result *C.uintptr_t) C.mscclgo_status {
	const op = "make a member"
	return call(func() error {
		if err := isNull(op, unsafe.Pointer(id), unsafe.Pointer(result)); err != nil {
			return err
		}
		m := &member{}
		var err error
		if m.options, m.collectives, err = groupOptions(op, o, c); err != nil {
			return err
		}
		if o != nil {
			m.localRank = int(o.local_rank)
		}
		unique, err := bootstrap.ParseUniqueID(C.GoString(id))
		if err != nil {
			return err
		}
		readEnvironment()
		m.Member, err = bootstrap.NewMember(bootstrap.Options{
			ID: unique, Timeout: m.options.Timeout, HeartbeatTimeout: m.options.HeartbeatTimeout, Logger: m.options.Logger,
		})
		if err != nil {
			return err
		}
		objects.add(nil, aMember, m, m.Close).store(result)
		return nil
	})
}

func withMember(op string, handle C.uintptr_t, f func(*member) error) C.mscclgo_status {
	return call(func() error { return of(op, aMember, handle, func(_ *object, m *member) error { return f(m) }) })
}

//export capi_member_connect
func capi_member_connect(handle C.uintptr_t, ms C.int64_t, result *C.uintptr_t) C.mscclgo_status {
	const op = "connect a member's group"
	return withMember(op, handle, func(m *member) error {
		if err := isNull(op, unsafe.Pointer(result)); err != nil {
			return err
		}
		return connectGroup(m.localRank, m.options, m.collectives, result, func() (*bootstrap.Bootstrap, error) {
			ctx, cancel := within(ms) // from here, since a GPU may take seconds to open
			defer cancel()
			return m.Next(ctx)
		})
	})
}

//export capi_member_reform
func capi_member_reform(handle, old C.uintptr_t, ms C.int64_t) C.mscclgo_status {
	return withMember(opReform, handle, func(m *member) error {
		return reform(old, ms, func(ctx context.Context, _ *group) (*bootstrap.Bootstrap, error) { return m.Next(ctx) })
	})
}

//export capi_member_generation
func capi_member_generation(handle C.uintptr_t, generation *C.uint64_t) C.mscclgo_status {
	const op = "get the generation of a member"
	return withMember(op, handle, func(m *member) error {
		if err := isNull(op, unsafe.Pointer(generation)); err != nil {
			return err
		}
		*generation = C.uint64_t(m.Generation())
		return nil
	})
}

//export capi_member_newcomers
func capi_member_newcomers(handle C.uintptr_t, wait *C.int) C.mscclgo_status {
	const op = "look for newcomers"
	return withMember(op, handle, func(m *member) error {
		if err := isNull(op, unsafe.Pointer(wait)); err != nil {
			return err
		}
		select {
		case <-m.Newcomers():
			*wait = 1
		default:
			*wait = 0
		}
		return nil
	})
}

//export capi_member_leave
func capi_member_leave(handle C.uintptr_t) C.mscclgo_status {
	return withMember("leave the elastic server", handle, func(m *member) error {
		m.Leave()
		return nil
	})
}

//export capi_member_destroy
func capi_member_destroy(handle C.uintptr_t) C.mscclgo_status {
	return call(func() error { return objects.destroy("destroy a member", aMember, handle) })
}
