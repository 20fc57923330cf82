package capi

// #include "process.h"
import "C"

import "github.com/mscclgo/mscclgo/communicator"

// port returns channel i to a rank, for an operation on a stream. Neither is destroyed before the call's end.
func (c *call) port(channels, stream handle, i, rank int) communicator.StreamPort {
	p, s := c.ports(channels), c.stream(stream)
	if !p.onStream {
		c.check(invalid(c.op, "the channels were not made for streams: make them by mscclgo_port_channels_create_for_streams"))
	}
	return p.OnStream(s, i, rank)
}

func (c *call) portPut(channels, stream handle, i, rank int, remote, local, bytes uint64) error {
	return c.to("put on a stream").port(channels, stream, i, rank).Put(remote, local, bytes)
}

func (c *call) portPutWithSignal(channels, stream handle, i, rank int, remote, local, bytes uint64) error {
	return c.to("put and signal on a stream").port(channels, stream, i, rank).PutWithSignal(remote, local, bytes)
}

func (c *call) portPutWithSignalAndFlush(channels, stream handle, i, rank int, remote, local, bytes uint64) error {
	return c.to("put, signal and flush on a stream").port(channels, stream, i, rank).PutWithSignalAndFlush(remote, local, bytes)
}

func (c *call) portGet(channels, stream handle, i, rank int, remote, local, bytes uint64) error {
	return c.to("get on a stream").port(channels, stream, i, rank).Get(remote, local, bytes)
}

func (c *call) portGetAndFlush(channels, stream handle, i, rank int, remote, local, bytes uint64) error {
	return c.to("get and flush on a stream").port(channels, stream, i, rank).GetAndFlush(remote, local, bytes)
}

func (c *call) portStore(channels, stream handle, i, rank int, remote, value uint64) error {
	return c.to("store on a stream").port(channels, stream, i, rank).Store(remote, value)
}

func (c *call) portStoreAndFlush(channels, stream handle, i, rank int, remote, value uint64) error {
	return c.to("store and flush on a stream").port(channels, stream, i, rank).StoreAndFlush(remote, value)
}

func (c *call) portAdd(channels, stream handle, i, rank int, remote, value uint64) error {
	return c.to("add on a stream").port(channels, stream, i, rank).Add(remote, value)
}

func (c *call) portAddAndFlush(channels, stream handle, i, rank int, remote, value uint64) error {
	return c.to("add and flush on a stream").port(channels, stream, i, rank).AddAndFlush(remote, value)
}

func (c *call) portExchange(channels, stream handle, i, rank int, remote, value, local uint64) error {
	return c.to("exchange on a stream").port(channels, stream, i, rank).Exchange(remote, value, local)
}

func (c *call) portExchangeAndFlush(channels, stream handle, i, rank int, remote, value, local uint64) error {
	return c.to("exchange and flush on a stream").port(channels, stream, i, rank).ExchangeAndFlush(remote, value, local)
}

func (c *call) portSignal(channels, stream handle, i, rank int) error {
	return c.to("signal on a stream").port(channels, stream, i, rank).Signal()
}

func (c *call) portFlush(channels, stream handle, i, rank int) error {
	return c.to("flush on a stream").port(channels, stream, i, rank).Flush()
}

func (c *call) portWait(channels, stream handle, i, rank int) error {
	return c.to("wait on a stream").port(channels, stream, i, rank).Wait()
}
