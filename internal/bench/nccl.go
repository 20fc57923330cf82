package bench

import "context"

type ncclGroup struct{}

func (*ncclGroup) close(error) error { return nil }

func (b *bench) meetNCCL(ctx context.Context) error { return nil }
