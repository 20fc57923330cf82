package capi

// #include "process.h"
import "C"

import (
	"context"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
)

func (c *call) elasticCreate(address *C.char, o *C.mscclgo_elastic_options, result *handle) error {
	need(c.to("open an elastic server"), address)
	return makes(c, result, nil, anElastic, func() (*bootstrap.Elastic, error) {
		options := bootstrap.ElasticOptions{Logger: logger()}
		if o != nil {
			if o.settle_ms < 0 || o.settle_ms > maxMilliseconds {
				return nil, invalid(c.op, "settle_ms is %d, not from 0 to %d", int64(o.settle_ms), maxMilliseconds)
			}
			options.Min, options.Max = int(o.least), int(o.most)
			options.Settle = time.Duration(o.settle_ms) * time.Millisecond
			if o.id != nil {
				options.ID = c.uniqueID(o.id)
			}
		}
		readEnvironment()
		return bootstrap.NewElastic(C.GoString(address), options)
	})
}

// uniqueID reads an id.
func (c *call) uniqueID(text *C.char) bootstrap.UniqueID {
	need(c, text)
	id, err := bootstrap.ParseUniqueID(C.GoString(text))
	c.check(err)
	return id
}

func (c *call) elasticID(server handle, id *C.char, bytes uint64) error {
	_, e := get[*bootstrap.Elastic](c.to("get the id of an elastic server"), anElastic, server)
	return c.storeID(e.ID(), id, bytes)
}

// member is what the handle of a member stands for.
type member struct {
	*bootstrap.Member
	options     communicator.Options // of its first group
	collectives collective.Options
	localRank   int
}

func (c *call) memberCreate(id *C.char, o *C.mscclgo_group_options, config *C.mscclgo_group_config, result *handle) error {
	need(c.to("make a member"), id)
	return makes(c, result, nil, aMember, func() (*member, error) {
		m := &member{}
		var err error
		if m.options, m.collectives, err = groupOptions(c.op, o, config); err != nil {
			return nil, err
		}
		if o != nil {
			m.localRank = int(o.local_rank)
		}
		unique := c.uniqueID(id)
		readEnvironment()
		m.Member, err = bootstrap.NewMember(bootstrap.Options{
			ID: unique, Timeout: m.options.Timeout, HeartbeatTimeout: m.options.HeartbeatTimeout, Logger: m.options.Logger,
		})
		return m, err
	})
}

func (c *call) member(h handle) *member {
	_, m := get[*member](c, aMember, h)
	return m
}

func (c *call) memberConnect(member handle, ms int64, result *handle) error {
	m := c.to("connect a member's group").member(member)
	need(c, result)
	return connectGroup(m.localRank, m.options, m.collectives, result, func() (*bootstrap.Bootstrap, error) {
		return m.Next(c.within(ms)) // from here, since a GPU may take seconds to open
	})
}

func (c *call) memberReform(member, old handle, ms int64) error {
	m := c.to(opReform).member(member)
	return c.reform(old, ms, func(ctx context.Context, _ *group) (*bootstrap.Bootstrap, error) { return m.Next(ctx) })
}

func (c *call) memberGeneration(member handle, generation *C.uint64_t) error {
	return put(c, generation, C.uint64_t(c.to("get the generation of a member").member(member).Generation()), nil)
}

func (c *call) memberNewcomers(member handle, wait *C.int) error {
	m := c.to("look for newcomers").member(member)
	select {
	case <-m.Newcomers():
		return put(c, wait, 1, nil)
	default:
		return put(c, wait, 0, nil)
	}
}

func (c *call) memberLeave(member handle) error {
	c.to("leave the elastic server").member(member).Leave()
	return nil
}
