package collective

import _ "embed"

// source is a file of kernels.
type source struct {
	name string // for messages
	text []byte
}

//go:embed kernels/allreduce.cu
var allReduceSource []byte

//go:embed kernels/allgather.cu
var allGatherSource []byte

//go:embed kernels/reducescatter.cu
var reduceScatterSource []byte

//go:embed kernels/alltoall.cu
var allToAllSource []byte

//go:embed kernels/broadcast.cu
var broadcastSource []byte

//go:embed kernels/sendrecv.cu
var sendReceiveSource []byte

//go:embed kernels/reduce.cu
var reduceSource []byte

//go:embed kernels/gather.cu
var gatherSource []byte

//go:embed kernels/scatter.cu
var scatterSource []byte

//go:embed kernels/alltoallv.cu
var allToAllVSource []byte

//go:embed kernels/group.cu
var groupSource []byte

//go:embed kernels/exchange.cu
var exchangeSource []byte

//go:embed kernels/ring.cu
var ringSource []byte

//go:embed kernels/pushed.cu
var pushedSource []byte

//go:embed kernels/bulk.cu
var bulkSource []byte

//go:embed kernels/staged.cu
var stagedSource []byte

//go:embed kernels/hier.cu
var hierSource []byte

//go:embed kernels/rails.cu
var railsSource []byte

//go:embed kernels/routes.cu
var routesSource []byte

// groupFile is where the kernels of groups of sends and receives are.
var groupFile = source{"group.cu", groupSource}

// source returns where an algorithm's kernel is.
func (k Kind) source(a algorithm) source {
	switch a.through {
	case byExchange:
		return source{"exchange.cu", exchangeSource}
	case byRing:
		return source{"ring.cu", ringSource}
	case byPush:
		return source{"pushed.cu", pushedSource}
	case byBulk:
		return source{"bulk.cu", bulkSource}
	case bySlots:
		return source{"alltoallv.cu", allToAllVSource}
	case byStages:
		return source{"staged.cu", stagedSource}
	case byHosts:
		return source{"hier.cu", hierSource}
	case byRails:
		return source{"rails.cu", railsSource}
	case byRoutes:
		return source{"routes.cu", routesSource}
	}
	return k.spec().source
}
