package rope

/*
// The call keeps no pointer to a slice and calls nothing in Go.
#cgo noescape ropego_prepared_apply
#cgo nocallback ropego_prepared_apply
#include "shim.h"
*/
import "C"

import (
	"runtime"
	"unsafe"
)

// Prepared is one call for the tensors of many layers. A forward pass makes the same call for every
// layer: shapes and positions are the same, and only the tensors lie elsewhere. A prepared call is
// checked once and keeps its cos and sin, so that what is left to each layer is the rotation. The results
// are those of ApplyQK, bit for bit. Any number of goroutines may use one at once, and any of them may
// close it.
type Prepared[Q, K Element] struct {
	handle handle[preparedState[Q, K]]
}

// preparedState is the C object, and what Apply checks slices by.
type preparedState[Q, K Element] struct {
	memory  preparedMemory
	pool    *Pool
	sizes   Step // its Batch and Tokens alone: slices of the step are not kept
	q, qOut shape[Q]
	k, kOut shape[K]
}

// preparedMemory is what a prepared call holds: it may not outlive its context.
type preparedMemory struct {
	ptr     *C.rope_prepared
	context use[contextState]
}

func (m preparedMemory) free() {
	C.rope_prepared_destroy(m.ptr)
	m.context.leave()
}

// shape is a tensor without its slice; of one that the call does not have, the zero value.
type shape[T Element] struct {
	tensor   Tensor[T]
	present  bool
	channels int
	elements uint64 // that a slice must have: Layout.holds
	pages    bool   // it is memory of a cache: batch rows are pages, and tokens slots
	optional bool   // nil will do, as the call has no tokens
}

// Prepare prepares the call that ApplyQK makes. q and k describe slices and have none, because Apply
// brings them:
//
//	call, err := rope.Prepare(ctx, rope.BSHD[rope.BFloat16](nil, 32), rope.BSHD[rope.BFloat16](nil, 8), step)
//	if err != nil { ... }
//	defer call.Close()
//	for _, layer := range layers {
//		if err := call.Apply(layer.q, layer.k); err != nil { ... }
//	}
//
// Either may be the zero value. What the step points to is read now and may change afterwards; only its
// pool is kept, and calls return an ErrClosed once that is closed. The context may be closed before the
// prepared call, which keeps its memory until it is closed itself.
//
// A prepared call takes 8 to 32 bytes of C memory per token and pair, pairs counted in sixteens, and more for
// rows that differ from head to head or between the channels of a pair (rope.h has the details). The garbage
// collector does not see it: Close gives it back at once.
func Prepare[Q, K Element](c *Context, q Tensor[Q], k Tensor[K], step Step) (*Prepared[Q, K], error) {
	return prepare("Prepare", c, &q, &k, nil, nil, &step)
}

// PrepareTo prepares the call that ApplyQKTo makes, for ApplyTo. The zero value as an output rotates in
// place.
func PrepareTo[Q, K Element](c *Context, qOut Tensor[Q], kOut Tensor[K], q Tensor[Q], k Tensor[K],
	step Step) (*Prepared[Q, K], error) {
	return prepare("PrepareTo", c, &q, &k, &qOut, &kOut, &step)
}

func prepare[Q, K Element](function string, c *Context, q *Tensor[Q], k *Tensor[K], qOut *Tensor[Q],
	kOut *Tensor[K], step *Step) (p *Prepared[Q, K], err error) {
	if step.Source != nil {
		return nil, step.noMove(function)
	}
	if step.Slots != nil || step.From != nil {
		return nil, invalid(function, "Step.Slots must be nil, and so must Step.From: PrepareAppend stores k and v, and "+
			"moves are not prepared")
	}
	if step.Unturned {
		return nil, step.noUnturned(function)
	}
	b := new(body[preparedState[Q, K]])
	var call C.ropego_append_call
	if err := b.value.create(function, c, q, k, qOut, kOut, step, &call, nil, nil); err != nil {
		return nil, err
	}
	p = new(Prepared[Q, K])
	p.handle.set(b, (*preparedState[Q, K]).destroy, runtime.AddCleanup(b, preparedMemory.free, b.value.memory))
	return p, nil
}

// create makes the C object. The slots of the step are for beside, which describes what a call has besides q
// and k; nil: nothing.
func (s *preparedState[Q, K]) create(function string, c *Context, q *Tensor[Q], k *Tensor[K], qOut *Tensor[Q],
	kOut *Tensor[K], step *Step, call *C.ropego_append_call, fused *C.ropego_fused, beside func(*contextState) error) (
	err error) {
	use, err := c.forSlices(function)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			use.leave()
		}
	}()
	if step.Norms != nil {
		return invalid(function, "Step.Norms must be nil: PrepareCall prepares calls with norms")
	}
	context := &use.body.value
	s.pool, s.sizes = step.Pool.kept(), Step{Batch: step.Batch, Tokens: step.Tokens}
	if err := step.check(function, &call.call, context); err != nil {
		return err
	}
	err = shapes(function, "q", "qOut", q, qOut, &call.call.q, &call.call.q_out, &s.q, &s.qOut, context, step)
	if err != nil {
		return err
	}
	err = shapes(function, "k", "kOut", k, kOut, &call.call.k, &call.call.k_out, &s.k, &s.kOut, context, step)
	if err != nil {
		return err
	}
	slots := new(Slots)
	if beside != nil {
		if err := beside(context); err != nil {
			return err
		}
		slots = step.Slots
	}
	var cos, sin *C.uint8_t
	if rows := step.CosSin; rows != nil {
		if err := rows.check(function, &call.call.rows, context, step, false); err != nil {
			return err
		}
		cos, sin = (*C.uint8_t)(rows.data), (*C.uint8_t)(rows.sin)
	}
	var pool *C.rope_pool
	if step.Pool != nil {
		if pool = step.Pool.enter(); pool == nil {
			return closed(function, "Step.Pool")
		}
		defer step.Pool.leave()
	}
	raw := C.ropego_prepared_create(context.ptr, call, fused, (*C.uint8_t)(slots.numbers),
		(*C.int32_t)(unsafe.SliceData(slots.pageStarts)), (*C.int32_t)(unsafe.SliceData(slots.starts)),
		(*C.uint8_t)(step.Positions.ids), (*C.int32_t)(unsafe.SliceData(step.CuSeqlens)),
		(*C.int32_t)(unsafe.SliceData(step.FreqSets)), cos, sin, pool, &s.memory.ptr)
	if err := check(function, raw); err != nil {
		return err
	}
	if raceEnabled {
		step.tellRace(context, false)
	}
	s.memory.context = use
	return nil
}

// shapes fills the C tensors and the shapes of one input and its output, which may be nil.
func shapes[T Element](function, name, outName string, in, out *Tensor[T], rawIn, rawOut *C.ropego_tensor,
	inShape, outShape *shape[T], c *contextState, step *Step) error {
	hasIn, hasOut := given(in, out)
	if hasIn {
		if err := inShape.set(function, name, in, rawIn, in.channels(c), step); err != nil {
			return err
		}
	}
	if hasOut {
		return outShape.set(function, outName, out, rawOut, out.channels(c), step)
	}
	return nil
}

func (s *shape[T]) set(function, name string, t *Tensor[T], raw *C.ropego_tensor, dim int, sizes *Step) error {
	if len(t.Data) != 0 {
		return invalid(function, "%s.Data (%d elements) must be nil: slices come with each Apply", name, len(t.Data))
	}
	elements, good := t.elements(dim, sizes)
	s.tensor, s.present, s.channels, s.elements = *t, true, dim, elements
	s.tensor.Data = nil
	if !good {
		return invalid(function, "%s fits no slice", s.words(name, sizes))
	}
	t.fill(raw, dim)
	return nil
}

// words describe the tensor of this name in an error.
func (s *shape[T]) words(name string, sizes *Step) string {
	return s.tensor.words(name, s.channels, sizes, s.pages)
}

func (s *preparedState[Q, K]) destroy() { s.memory.free() }

// Close gives the prepared call up: later calls return an ErrClosed. Its memory is freed now, or by the last
// of the calls that are under way, which finish. Closing twice is allowed, and so is closing nil.
func (p *Prepared[Q, K]) Close() error {
	p.ref().close()
	return nil
}

// ref is the handle, which nil has not.
func (p *Prepared[Q, K]) ref() *handle[preparedState[Q, K]] {
	if p == nil {
		return nil
	}
	return &p.handle
}

// Apply rotates q and k in place: slices as long as their descriptions say, nil for one that the call
// does not have. It allocates nothing.
func (p *Prepared[Q, K]) Apply(q []Q, k []K) error {
	return p.apply("Prepared.Apply", nil, nil, q, k)
}

// ApplyTo rotates q into qOut and k into kOut, under the rules of ApplyQKTo; nil for an output that the
// call does not have.
func (p *Prepared[Q, K]) ApplyTo(qOut []Q, kOut []K, q []Q, k []K) error {
	return p.apply("Prepared.ApplyTo", qOut, kOut, q, k)
}

func (p *Prepared[Q, K]) apply(function string, qOut []Q, kOut []K, q []Q, k []K) error {
	use, open := p.ref().enter()
	if !open {
		return closed(function, "the prepared call p")
	}
	defer use.leave()
	state := &use.body.value
	if state.sizes.Batch == 0 && state.sizes.Tokens > 0 && len(q)|len(k) != 0 {
		return state.sizes.noBatch(function)
	}
	qData, err := state.q.address(function, "q", q, &state.sizes)
	if err != nil {
		return err
	}
	kData, err := state.k.address(function, "k", k, &state.sizes)
	if err != nil {
		return err
	}
	qOutData, err := state.qOut.address(function, "qOut", qOut, &state.sizes)
	if err != nil {
		return err
	}
	kOutData, err := state.kOut.address(function, "kOut", kOut, &state.sizes)
	if err != nil {
		return err
	}
	if state.pool != nil {
		if state.pool.enter() == nil {
			return closed(function, "the Step.Pool of the prepared call")
		}
		defer state.pool.leave()
	}
	raw := C.ropego_prepared_apply(state.memory.ptr, qData, kData, qOutData, kOutData)
	if raceEnabled && raw == nil {
		context := &state.memory.context.body.value
		tellRace(state.q.with(q), state.qOut.with(qOut), nil, context, &state.sizes)
		tellRace(state.k.with(k), state.kOut.with(kOut), nil, context, &state.sizes)
	}
	return check(function, raw)
}

// address checks that a slice has as many elements as the tensor needs.
func (s *shape[T]) address(function, name string, slice []T, sizes *Step) (*C.uint8_t, error) {
	if s.optional && len(slice) == 0 {
		return nil, nil
	}
	if !s.tensor.Layout.holds(s.elements, len(slice)) {
		if !s.present {
			return nil, invalid(function, "%s (%d elements) must be nil: the prepared call has no %s", name,
				len(slice), name)
		}
		return nil, s.tensor.Layout.misfit(function, s.words(name, sizes), s.elements, true, len(slice), dtypeOf[T]())
	}
	// An empty slice may have an address, which a tensor that is absent must not have.
	if s.elements == 0 {
		return nil, nil
	}
	return (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(slice))), nil
}

// with is the tensor with its slice.
func (s *shape[T]) with(slice []T) *Tensor[T] {
	t := s.tensor
	if s.present {
		t.Data = slice
	}
	return &t
}
