package rope_test

// The fuzzer's calls that turn q and k, and that write rows of cos and sin.

import (
	"testing"

	rope "github.com/librope/librope/bindings/go"
)

func call[Q, K rope.Element](f *fuzzer, t *testing.T, s *source, c *rope.Context) {
	z := newSizes(s, c)
	step, memory := newStep(s, z, false)
	if s.oneIn(10) {
		memory = append(memory, addFrom(s, z, &step)...)
	} else {
		memory = append(memory, addRows[Q](s, z, &step)...)
	}
	if s.oneIn(4) {
		step.Pool = f.pool
	}
	q, k := newOperand[Q](s, z), newOperand[K](s, z)
	packed(s, q, &k)
	qOut, kOut := noOperand[Q](s), noOperand[K](s)
	to, prepares := s.oneIn(2), s.oneIn(3) && canPrepare(step)
	if to {
		qOut, kOut = outputOf[Q](s, z, &step, q), outputOf[K](s, z, &step, k)
	}
	var n norms
	if wantsNorms(s, step) && (!prepares || s.oneIn(8)) { // they are refused then
		parts := s.number(1 + s.below(3))
		n.q, n.k = newNorm(s, z, step, parts, q, qOut), newNorm(s, z, step, parts, k, kOut)
		memory = append(memory, n.addTo(&step)...)
	}
	memory = append(memory, q.region, k.region, qOut.region, kOut.region)
	told := z.of(step)
	allowOutput(told, q, qOut, n.q.of != nil)
	allowOutput(told, k, kOut, n.k.of != nil)
	kinds := kindsOf(step)
	if repeats(q, qOut) || repeats(k, kOut) {
		kinds = append(kinds, "repeated heads")
	}
	var err error
	switch {
	case prepares:
		err = prepared(f, t, s, c, step, q, k, qOut, kOut, to)
		kinds = append(kinds, "Prepared")
	case to:
		err = rope.ApplyQKTo(c, qOut.tensor, kOut.tensor, q.tensor, k.tensor, step)
	default:
		err = rope.ApplyQK(c, q.tensor, k.tensor, step)
	}
	f.count(err, kinds...)
	f.judge(t, err, memory...)
}

// canPrepare tells of more rows that there may be memory for them, and that they take long.
func canPrepare(step rope.Step) bool { return float64(step.Batch)*float64(step.Tokens) <= 1<<16 }

// prepared describes the tensors of a call, and applies it to their slices: to some of another length.
func prepared[Q, K rope.Element](f *fuzzer, t *testing.T, s *source, c *rope.Context, step rope.Step, q operand[Q],
	k operand[K], qOut operand[Q], kOut operand[K], to bool) error {
	var p *rope.Prepared[Q, K]
	var err error
	if to {
		p, err = rope.PrepareTo(c, qOut.shape(s), kOut.shape(s), q.shape(s), k.shape(s), step)
	} else {
		p, err = rope.Prepare(c, q.shape(s), k.shape(s), step)
	}
	if err != nil {
		return err
	}
	defer p.Close()
	f.accept(t, s, c, p.Close)
	if to {
		return p.ApplyTo(qOut.slice(s), kOut.slice(s), q.slice(s), k.slice(s))
	}
	return p.Apply(q.slice(s), k.slice(s))
}

func short[T rope.Element](f *fuzzer, t *testing.T, s *source, c *rope.Context) {
	z := newSizes(s, c)
	z.batch = 1
	ids := fence(s, z.tokens, s.position)
	tensor := func() (*region[T], int) {
		heads := s.below(4)
		n := z.tokens * heads * z.info.HeadDim
		if s.oneIn(30) {
			n = max(0, n+pick(s, -1, 1, 64))
		}
		r := fence(s, n, element[T](s))
		o := operand[T]{tensor: rope.BSHD(r.inside, heads), region: r}
		o.allow(z, false)
		return r, s.number(heads)
	}
	q, qHeads := tensor()
	k, kHeads := tensor()
	f.judge(t, rope.ApplyTHD(c, ids.inside, q.inside, qHeads, k.inside, kHeads), ids, q, k)
}

func fill[T rope.Element](f *fuzzer, t *testing.T, s *source, c *rope.Context) {
	z := newSizes(s, c)
	step, memory := newStep(s, z, false)
	told := z.of(step)
	out, written := newRows[T](s, z, &told)
	if s.oneIn(4) {
		r := fence(s, z.batch*z.tokens*max(1, z.info.FreqHeads)*z.info.Pairs*pick(s, 1, 2), element[float32](s))
		r.allow(0, len(r.inside))
		out, written = pick(s, rope.Angles, rope.AnglesFull)(r.inside), []guarded{r}
		out.Heads = z.info.FreqHeads
	}
	f.judge(t, rope.FillCosSin(c, step, out), append(memory, written...)...)
}

// shards asks where the tokens of a step are.
func shards(f *fuzzer, t *testing.T, s *source, c *rope.Context) {
	z := newSizes(s, c)
	step, memory := newStep(s, z, false)
	if step.Batch > z.batch || step.Tokens > z.tokens {
		return // allowed, and it takes memory
	}
	step.Shard = newShard(s)
	ids, numbers, err := rope.ShardIDs(step)
	f.count(err, "ShardIDs")
	if f.judge(t, err, memory...); err == nil && (len(ids) != step.Batch*step.Tokens || len(numbers) != step.Tokens) {
		t.Fatalf("%d ids and %d numbers of %+v", len(ids), len(numbers), step)
	}
}
