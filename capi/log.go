package capi

// #include "process.h"
import "C"

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"unsafe"
)

// sink passes records to the function of mscclgo_set_log.
type sink struct {
	mu    sync.Mutex
	f     C.mscclgo_log
	user  address
	level slog.Level
}

// logs is the process's, since groups keep their loggers while the function changes.
var logs sink

// logger returns the logger of a new group.
func logger() *slog.Logger { return slog.New(&records{}) }

// records is a handler: the attributes and groups that precede a record's own, in the order
// in which they were given.
type records struct {
	with []func(slog.Handler) slog.Handler
}

func (r *records) Enabled(_ context.Context, level slog.Level) bool {
	logs.mu.Lock()
	defer logs.mu.Unlock()
	return logs.f != nil && level >= logs.level
}

func (r *records) WithAttrs(attrs []slog.Attr) slog.Handler {
	return r.plus(func(h slog.Handler) slog.Handler { return h.WithAttrs(attrs) })
}

func (r *records) WithGroup(name string) slog.Handler {
	return r.plus(func(h slog.Handler) slog.Handler { return h.WithGroup(name) })
}

func (r *records) plus(f func(slog.Handler) slog.Handler) slog.Handler {
	return &records{append(append([]func(slog.Handler) slog.Handler(nil), r.with...), f)}
}

func (r *records) Handle(ctx context.Context, record slog.Record) error {
	var line bytes.Buffer
	var h slog.Handler = slog.NewTextHandler(&line, &slog.HandlerOptions{Level: record.Level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
			return slog.Attr{}
		}
		return a
	}})
	for _, with := range r.with {
		h = with(h)
	}
	if err := h.Handle(ctx, record); err != nil {
		return err
	}
	text := C.CString(string(bytes.TrimSuffix(line.Bytes(), []byte("\n"))))
	defer C.free(unsafe.Pointer(text))
	logs.mu.Lock()
	defer logs.mu.Unlock()
	if logs.f != nil && record.Level >= logs.level {
		C.capi_log(logs.f, logs.user, C.int(record.Level), text)
	}
	return nil
}

func (c *call) setLog(f C.mscclgo_log, user address, level int) error {
	logs.mu.Lock()
	defer logs.mu.Unlock()
	logs.f, logs.user, logs.level = f, user, slog.Level(level)
	return nil
}
