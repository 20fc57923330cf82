package main

// #include "process.h"
import "C"

import (
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
)

// onStream has f queue an operation of channel i to a rank on a stream. Neither is destroyed meanwhile.
func onStream(op string, handle, stream C.uintptr_t, i, rank C.int, f func(communicator.StreamPort) error) C.mscclgo_status {
	return call(func() error {
		return of(op, portChannels, handle, func(_ *object, p ports) error {
			return of(op, aStream, stream, func(_ *object, s *gpu.Stream) error {
				if !p.onStream {
					return invalid(op, "the channels were not made for streams: make them by mscclgo_port_channels_create_for_streams")
				}
				return f(p.OnStream(s, int(i), int(rank)))
			})
		})
	})
}

//export capi_port_put
func capi_port_put(handle, stream C.uintptr_t, i, rank C.int, remote, local, bytes C.uint64_t) C.mscclgo_status {
	return onStream("put on a stream", handle, stream, i, rank, func(to communicator.StreamPort) error {
		return to.Put(uint64(remote), uint64(local), uint64(bytes))
	})
}

//export capi_port_put_with_signal
func capi_port_put_with_signal(handle, stream C.uintptr_t, i, rank C.int, remote, local, bytes C.uint64_t) C.mscclgo_status {
	return onStream("put and signal on a stream", handle, stream, i, rank, func(to communicator.StreamPort) error {
		return to.PutWithSignal(uint64(remote), uint64(local), uint64(bytes))
	})
}

//export capi_port_put_with_signal_and_flush
func capi_port_put_with_signal_and_flush(handle, stream C.uintptr_t, i, rank C.int, remote, local, bytes C.uint64_t) C.mscclgo_status {
	return onStream("put, signal and flush on a stream", handle, stream, i, rank, func(to communicator.StreamPort) error {
		return to.PutWithSignalAndFlush(uint64(remote), uint64(local), uint64(bytes))
	})
}

//export capi_port_get
func capi_port_get(handle, stream C.uintptr_t, i, rank C.int, remote, local, bytes C.uint64_t) C.mscclgo_status {
	return onStream("get on a stream", handle, stream, i, rank, func(to communicator.StreamPort) error {
		return to.Get(uint64(remote), uint64(local), uint64(bytes))
	})
}

//export capi_port_get_and_flush
func capi_port_get_and_flush(handle, stream C.uintptr_t, i, rank C.int, remote, local, bytes C.uint64_t) C.mscclgo_status {
	return onStream("get and flush on a stream", handle, stream, i, rank, func(to communicator.StreamPort) error {
		return to.GetAndFlush(uint64(remote), uint64(local), uint64(bytes))
	})
}

//export capi_port_store
func capi_port_store(handle, stream C.uintptr_t, i, rank C.int, remote, value C.uint64_t) C.mscclgo_status {
	return onStream("store on a stream", handle, stream, i, rank, func(to communicator.StreamPort) error {
		return to.Store(uint64(remote), uint64(value))
	})
}

//export capi_port_store_and_flush
func capi_port_store_and_flush(handle, stream C.uintptr_t, i, rank C.int, remote, value C.uint64_t) C.mscclgo_status {
	return onStream("store and flush on a stream", handle, stream, i, rank, func(to communicator.StreamPort) error {
		return to.StoreAndFlush(uint64(remote), uint64(value))
	})
}

//export capi_port_add
func capi_port_add(handle, stream C.uintptr_t, i, rank C.int, remote, value C.uint64_t) C.mscclgo_status {
	return onStream("add on a stream", handle, stream, i, rank, func(to communicator.StreamPort) error {
		return to.Add(uint64(remote), uint64(value))
	})
}

//export capi_port_add_and_flush
func capi_port_add_and_flush(handle, stream C.uintptr_t, i, rank C.int, remote, value C.uint64_t) C.mscclgo_status {
	return onStream("add and flush on a stream", handle, stream, i, rank, func(to communicator.StreamPort) error {
		return to.AddAndFlush(uint64(remote), uint64(value))
	})
}

//export capi_port_exchange
func capi_port_exchange(handle, stream C.uintptr_t, i, rank C.int, remote, value, local C.uint64_t) C.mscclgo_status {
	return onStream("exchange on a stream", handle, stream, i, rank, func(to communicator.StreamPort) error {
		return to.Exchange(uint64(remote), uint64(value), uint64(local))
	})
}

//export capi_port_exchange_and_flush
func capi_port_exchange_and_flush(handle, stream C.uintptr_t, i, rank C.int, remote, value, local C.uint64_t) C.mscclgo_status {
	return onStream("exchange and flush on a stream", handle, stream, i, rank, func(to communicator.StreamPort) error {
		return to.ExchangeAndFlush(uint64(remote), uint64(value), uint64(local))
	})
}

//export capi_port_signal
func capi_port_signal(handle, stream C.uintptr_t, i, rank C.int) C.mscclgo_status {
	return onStream("signal on a stream", handle, stream, i, rank, communicator.StreamPort.Signal)
}

//export capi_port_flush
func capi_port_flush(handle, stream C.uintptr_t, i, rank C.int) C.mscclgo_status {
	return onStream("flush on a stream", handle, stream, i, rank, communicator.StreamPort.Flush)
}

//export capi_port_wait
func capi_port_wait(handle, stream C.uintptr_t, i, rank C.int) C.mscclgo_status {
	return onStream("wait on a stream", handle, stream, i, rank, communicator.StreamPort.Wait)
}
