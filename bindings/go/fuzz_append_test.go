package rope_test

// The fuzzer's calls that store k and v in a cache of their types.

import (
	"testing"

	rope "github.com/librope/librope/bindings/go"
)

// appended are the tensors of a call of Append.
type appended[Q, K, V rope.Element] struct {
	q, qOut operand[Q]
	k, kOut operand[K]
	v, vOut operand[V]
	cache   store[K, V]
}

func appendCall[Q, K, V rope.Element](f *fuzzer, t *testing.T, s *source, c *rope.Context) {
	z := newSizes(s, c)
	step, memory := newStep(s, z, true)
	memory = append(memory, addRows[Q](s, z, &step)...)
	pages, pageSize := newPageSizes(s, z, step)
	p := newPlaces(s, z, step, pages, pageSize)
	step.Slots = p.slots
	memory = append(memory, p.memory...)
	if s.oneIn(4) {
		step.Pool = f.pool
	}
	wide := z.plain(z.info.HeadDim)
	if s.oneIn(2) {
		wide = z.plain(1 + s.below(40))
	}
	x := appended[Q, K, V]{q: newOperand[Q](s, z), k: newOperand[K](s, z), v: newOperand[V](s, wide),
		qOut: noOperand[Q](s), kOut: noOperand[K](s), vOut: noOperand[V](s)}
	x.v.tensor.Span = s.oneIn(60)
	to, prepares := s.oneIn(3), s.oneIn(3) && canPrepare(step)
	if to {
		x.qOut, x.kOut = outputOf[Q](s, z, &step, x.q), outputOf[K](s, z, &step, x.k)
		x.vOut = outputOf[V](s, wide, &step, x.v)
		x.vOut.tensor.Span = !x.vOut.absent() && s.oneIn(60)
	}
	var n norms
	if wantsNorms(s, step) && (!prepares || s.oneIn(8)) { // they are refused then
		n.q, n.k = newNorm(s, z, step, 1, x.q, x.qOut), newNorm(s, z, step, 1, x.k, x.kOut)
		n.v = newNorm(s, wide, step, 1, x.v, x.vOut)
		memory = append(memory, n.addTo(&step)...)
	}
	x.cache = newStore[K, V](s, z, x.k.heads(), x.v.heads(), wide.info.HeadDim, pages, pageSize, x.k.tensor.Span != s.oneIn(8))
	memory = append(memory, x.q.region, x.qOut.region, x.k.region, x.kOut.region, x.v.region, x.vOut.region)
	memory = append(memory, x.cache.memory()...)
	told := z.of(step)
	allowOutput(told, x.q, x.qOut, n.q.of != nil)
	if !x.kOut.absent() { // else k is only read
		allowOutput(told, x.k, x.kOut, n.k.of != nil)
	}
	if !x.vOut.absent() {
		x.vOut.allow(told.plain(wide.info.HeadDim), true)
	}
	kinds := append(kindsOf(step), "Append")
	cache := x.cache.typed(s)
	var err error
	switch {
	case prepares:
		err = x.prepared(f, t, s, c, cache, step, to)
		kinds = append(kinds, "PreparedAppend")
	case to:
		err = rope.AppendTo(c, x.qOut.tensor, x.kOut.tensor, x.vOut.tensor, x.q.tensor, x.k.tensor, x.v.tensor, cache, step)
	default:
		err = rope.Append(c, x.q.tensor, x.k.tensor, x.v.tensor, cache, step)
	}
	if err == nil {
		x.cache.allow(p.slotsOf(told, step, cache.PageSize), true)
	}
	f.count(err, kinds...)
	f.judge(t, err, memory...)
}

// prepared describes the tensors of a call, and applies it to their slices: to some of another length.
func (x *appended[Q, K, V]) prepared(f *fuzzer, t *testing.T, s *source, c *rope.Context, cache rope.KVCache[K, V],
	step rope.Step, to bool) error {
	cache.K, cache.V = x.cache.keys.shape(s), x.cache.values.shape(s)
	var p *rope.PreparedAppend[Q, K, V]
	var err error
	if to {
		p, err = rope.PrepareAppendTo(c, x.qOut.shape(s), x.kOut.shape(s), x.vOut.shape(s), x.q.shape(s), x.k.shape(s),
			x.v.shape(s), cache, step)
	} else {
		p, err = rope.PrepareAppend(c, x.q.shape(s), x.k.shape(s), x.v.shape(s), cache, step)
	}
	if err != nil {
		return err
	}
	defer p.Close()
	f.accept(t, s, c, p.Close)
	keys, values := x.cache.keys.slice(s), x.cache.values.slice(s)
	if to {
		return p.ApplyTo(x.qOut.slice(s), x.kOut.slice(s), x.vOut.slice(s), x.q.slice(s), x.k.slice(s), x.v.slice(s), keys, values)
	}
	return p.Apply(x.q.slice(s), x.k.slice(s), x.v.slice(s), keys, values)
}
