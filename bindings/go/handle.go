//go:build cgo

package rope

import (
	"runtime"
	"sync/atomic"
	"unsafe"
)

// noCopy makes go vet report copies of handles (copylocks).
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// handle is the one reference to the C memory behind a Context, Prepared or Model, shared by all copies
// of it.
type handle[T any] struct {
	_    noCopy
	body *body[T]
}

// body is a C object and what Go knows of it. Calls count themselves in and out, so that Close frees the
// object at once if none is under way, and the last of them frees it if there are some. Neither a Close
// beside calls nor a copied handle can free memory in use. What nobody closes, the garbage collector
// frees.
type body[T any] struct {
	value   T
	free    func(*T)
	cleanup runtime.Cleanup
	closed  atomic.Bool
	freed   atomic.Bool

	// Goroutines that call at once count on several cache lines: on one they would wait for each other.
	_     [64]byte
	calls [8]counter
}

type counter struct {
	atomic.Int64
	_ [56]byte
}

// use is one call's hold on a body.
type use[T any] struct {
	body *body[T]
	at   *counter
}

// set takes over a C object: free frees it, cleanup is the collector's way to do so.
func (h *handle[T]) set(b *body[T], free func(*T), cleanup runtime.Cleanup) {
	b.free, b.cleanup = free, cleanup
	h.body = b
}

// enter begins a call, which ends with leave; false after Close, and for a handle that was never made.
func (h *handle[T]) enter() (use[T], bool) {
	if h == nil || h.body == nil {
		return use[T]{}, false
	}
	b := h.body
	// A goroutine has a stack of its own, of 2 KiB and more.
	var here byte
	u := use[T]{b, &b.calls[uint32(uintptr(unsafe.Pointer(&here))>>11)*0x9e3779b9>>29]}
	raceIgnore()
	u.at.Add(1)
	raceWatch()
	if b.closed.Load() {
		u.leave()
		return use[T]{}, false
	}
	return u, true
}

func (u use[T]) leave() {
	raceIgnore()
	u.at.Add(-1)
	raceWatch()
	if u.body.closed.Load() {
		u.body.settle()
	}
}

// peek is the Go side of the object, to read without a call into C; nil where enter says false.
func (h *handle[T]) peek() *T {
	if h == nil || h.body == nil || h.body.closed.Load() {
		return nil
	}
	return &h.body.value
}

func (h *handle[T]) close() {
	if h == nil || h.body == nil {
		return
	}
	h.body.closed.Store(true)
	h.body.settle()
}

// settle frees a closed object that no call uses. A call that counts itself in while the counters are
// read sees that the object is closed, and uses nothing; and it comes here when it has left.
func (b *body[T]) settle() {
	for i := range b.calls {
		if b.calls[i].Load() != 0 {
			return
		}
	}
	if b.freed.CompareAndSwap(false, true) {
		b.cleanup.Stop() // the body is in use here, so it has not been queued
		b.free(&b.value)
	}
	runtime.KeepAlive(b)
}
