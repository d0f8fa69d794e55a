package rope

// #include "shim.h"
import "C"

import (
	"runtime"
	"sync"
	"unsafe"
)

// Pool is librope's own threads for calls that move more than 2 MiB, which are cut into tasks of
// 256 KiB to 1 MiB. Everything else runs on the calling thread. Concurrent calls take turns.
type Pool struct {
	_     noCopy
	state *poolState // shared by copies
}

// poolState is the C pool. Calls hold the lock for reading, so that Close waits for them.
type poolState struct {
	mutex   sync.RWMutex
	ptr     *C.rope_pool // nil after Close
	cleanup runtime.Cleanup
}

// NewPool starts a pool. threads says how many work, the caller's included; 0: one per CPU.
func NewPool(threads int) (*Pool, error) {
	if err := compatible(); err != nil {
		return nil, err
	}
	numbers := narrow{function: "NewPool"}
	count := numbers.int32("threads", threads)
	if numbers.err != nil {
		return nil, numbers.err
	}
	state := new(poolState)
	if err := check("NewPool", C.ropego_pool_create(count, &state.ptr)); err != nil {
		return nil, err
	}
	state.cleanup = runtime.AddCleanup(state, destroyPool, uintptr(unsafe.Pointer(state.ptr)))
	return &Pool{state: state}, nil
}

func destroyPool(ptr uintptr) {
	C.rope_pool_destroy(*(**C.rope_pool)(unsafe.Pointer(&ptr)))
}

// Close waits for the calls that use the pool, then ends its threads. Later calls with the pool return
// an ErrClosed. Closing twice is allowed, and so is closing nil. A pool that is forgotten is closed by the
// garbage collector.
func (p *Pool) Close() error {
	if p == nil || p.state == nil {
		return nil
	}
	p.state.mutex.Lock()
	defer p.state.mutex.Unlock()
	if p.state.ptr != nil {
		p.state.cleanup.Stop()
		C.rope_pool_destroy(p.state.ptr)
		p.state.ptr = nil
	}
	return nil
}

// kept is the handle for a prepared call: the caller may overwrite the variable at p with another.
func (p *Pool) kept() *Pool {
	if p == nil {
		return nil
	}
	return &Pool{state: p.state}
}

// enter returns the C pool for one call, which ends with leave; or nil after Close.
func (p *Pool) enter() *C.rope_pool {
	if p.state == nil {
		return nil
	}
	p.state.mutex.RLock()
	if p.state.ptr == nil {
		p.state.mutex.RUnlock()
		return nil
	}
	return p.state.ptr
}

func (p *Pool) leave() {
	p.state.mutex.RUnlock()
	runtime.KeepAlive(p.state)
}
