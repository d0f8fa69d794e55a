//go:build cgo

package rope

import "sync/atomic"

// noCopy makes go vet report copies of handles (copylocks).
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// handle is the one reference to the memory behind a Context or Model, shared by all copies of it.
// Close drops it. A call that is under way holds the memory itself; what nothing holds is freed by the
// cleanup of T. So neither a Close beside calls nor a copied handle can free memory in use.
type handle[T any] struct {
	_   noCopy
	ref *atomic.Pointer[T]
}

func (h *handle[T]) set(t *T) {
	h.ref = new(atomic.Pointer[T])
	h.ref.Store(t)
}

// get returns nil after drop, and for a handle that was never made.
func (h *handle[T]) get() *T {
	if h.ref == nil {
		return nil
	}
	return h.ref.Load()
}

func (h *handle[T]) drop() {
	if h.ref != nil {
		h.ref.Store(nil)
	}
}
