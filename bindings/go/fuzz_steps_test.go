package rope_test

// Steps of the fuzzer's calls: sizes, positions, sequences, rows of cos and sin, and shards.

import (
	rope "github.com/librope/librope/bindings/go"
)

// sizes are those of one call; real ones, though the step may be wrong about them.
type sizes struct {
	info          rope.Info
	batch, tokens int
}

func newSizes(s *source, c *rope.Context) sizes {
	info, err := c.Info(0)
	if err != nil {
		info = rope.Info{HeadDim: 8, RotaryDim: 8, Pairs: 4, Axes: 1, FreqSets: 1} // closed
	}
	z := sizes{info: info, batch: pick(s, 1, 1, 1, 1, 2, 2, 3, 4, 0), tokens: s.below(7)}
	if s.oneIn(60) && info.HeadDim <= 128 {
		z.tokens = 300 // beyond the threshold of pools
	}
	return z
}

// of are the sizes that a call with the step sees: another number may be as good. What no memory here
// can hold is refused, and stays as it was.
func (z sizes) of(step rope.Step) sizes {
	if step.Batch >= 0 && step.Batch < 1<<10 {
		z.batch = step.Batch
	}
	if step.Tokens >= 0 && step.Tokens < 1<<10 {
		z.tokens = step.Tokens
	}
	return z
}

// channels is how many a head has, or its span.
func (z sizes) channels(span bool) int {
	if span {
		return z.info.RotaryDim
	}
	return z.info.HeadDim
}

// plain are the sizes of tensors that do not turn, with so many channels.
func (z sizes) plain(channels int) sizes {
	z.info = rope.Info{HeadDim: channels, RotaryDim: channels}
	return z
}

// positions are positions of a random kind and their memory.
func positions(s *source, z sizes, sequences int) (rope.Positions, guarded) {
	n, kind := 0, s.below(8)
	switch kind {
	case 7:
		return rope.Same(s.position()), fence(s, 0, s.position)
	case 0:
		return rope.Offset(s.position()), fence(s, 0, s.position)
	case 1:
		n = sequences
	case 2:
		n = z.tokens
	case 3:
		n = z.batch * z.tokens
	default:
		n = z.info.Axes * z.batch * z.tokens
	}
	n = s.length(25, n, 7)
	switch s.below(3) {
	case 0:
		r := fence(s, n, s.position)
		if kind == 1 {
			return rope.SeqOffsets(r.inside), r
		}
		return idsOf(s, z, kind, r.inside), r
	case 1:
		r := fence(s, n, func() int32 { return int32(s.position()) })
		if kind == 1 {
			return rope.SeqOffsets(r.inside), r
		}
		return idsOf(s, z, kind, r.inside), r
	}
	r := fence(s, n, func() float32 { return float32(s.float()) })
	return idsOf(s, z, kind, r.inside), r
}

func idsOf[I int32 | int64 | float32](s *source, z sizes, kind int, ids []I) rope.Positions {
	switch kind {
	case 2:
		return rope.TokenIDs(ids)
	case 1, 3:
		return rope.BatchTokenIDs(ids)
	case 4:
		return rope.AxesBatchTokenIDs(ids)
	case 5:
		return rope.BatchTokenAxesIDs(ids)
	}
	return rope.StridedIDs(ids, s.number(z.batch*z.tokens), s.number(z.tokens), s.number(1))
}

// newStep is a step and the memory that it reads. Steps of caches mostly have no batch rows that repeat.
func newStep(s *source, z sizes, cached bool) (rope.Step, []guarded) {
	step := rope.Step{Batch: s.number(z.batch), Tokens: s.number(z.tokens),
		Operation: pick(s, rope.OperationForward, rope.OperationForward, rope.OperationForward, rope.OperationBackward,
			rope.OperationBackward, rope.OperationInverse, rope.OperationShift)}
	var memory []guarded
	rows, sequences := z, z.batch // of positions
	if z.batch > 1 && s.oneIn(4) && (!cached || s.oneIn(20)) {
		step.BatchRepeat = s.number(z.batch)
		rows.batch, sequences = 1, 1
	}
	if rows.batch == 1 && s.oneIn(4) {
		sequences = 1 + s.below(3)
		cuts := fence(s, sequences+1, func() int32 { return int32(s.below(z.tokens + 1)) })
		cuts.inside[0] = 0
		for i := 1; i <= sequences; i++ {
			cuts.inside[i] = max(cuts.inside[i-1], cuts.inside[i])
		}
		cuts.inside[sequences] = int32(z.tokens)
		if s.oneIn(8) {
			cuts.inside[s.below(sequences+1)] = int32(s.hostile())
		}
		copy(cuts.before, cuts.whole)
		step.CuSeqlens, memory = cuts.inside, append(memory, cuts)
	}
	if (z.info.FreqSets > 1) != s.oneIn(30) {
		sets := newSets(s, z, sequences)
		step.FreqSets, memory = sets.inside, append(memory, sets)
	}
	ids, read := positions(s, rows, sequences)
	if step.Operation == rope.OperationShift && !s.oneIn(8) {
		ids = rope.Same(s.position()) // others are mostly refused
	}
	step.Positions = ids
	if step.Operation != rope.OperationShift && s.oneIn(10) {
		step.Shard = newShard(s)
		if !s.oneIn(8) {
			step.Positions, step.CuSeqlens = rope.Offset(int64(s.below(5000))), nil // others are mostly refused
		}
	}
	if cached && step.Operation == rope.OperationBackward && !s.oneIn(8) {
		step.Operation = rope.OperationForward // gradients are not cached
	}
	if s.oneIn(40) {
		step.Operation = rope.Operation(s.hostile())
	}
	return step, append(memory, read)
}

// newSets are frequency sets of sequences.
func newSets(s *source, z sizes, sequences int) *region[int32] {
	return fence(s, max(0, s.number(sequences)&63), func() int32 { return int32(s.number(s.below(z.info.FreqSets))) })
}

// newShard is one rank's share of any kind.
func newShard(s *source) rope.Shard {
	world := 1 + s.below(4)
	rank := s.number(s.below(world))
	shard := pick(s, rope.ContiguousShard(rank, world), rope.ZigzagShard(rank, world),
		rope.StripedShard(rank, s.number(world), s.number(1+s.below(3))), rope.HeadsShard(rank, world))
	if s.oneIn(6) {
		shard = shard.Then(rope.ContiguousShard(s.below(2), s.number(2)))
	}
	if s.oneIn(6) {
		shard = shard.PerDocument()
	}
	return shard
}

// addFrom makes a call one that turns keys from other positions to those of the step, and returns what these read.
func addFrom(s *source, z sizes, step *rope.Step) []guarded {
	rows, sequences := z, z.batch
	if step.BatchRepeat > 1 {
		rows.batch, sequences = 1, 1
	}
	if step.CuSeqlens != nil {
		sequences = max(0, len(step.CuSeqlens)-1)
	}
	ids, read := positions(s, rows, sequences)
	step.Operation, step.From = rope.OperationRerotate, &ids
	if step.FreqSets == nil || !s.oneIn(2) {
		return []guarded{read}
	}
	sets := newSets(s, z, sequences)
	step.FromFreqSets = sets.inside
	return []guarded{read, sets}
}

// addRows makes a call one that turns by rows of cos and sin now and then, and returns what it reads.
func addRows[T rope.Element](s *source, z sizes, step *rope.Step) (read []guarded) {
	if !s.oneIn(4) {
		return nil
	}
	step.CosSin, read = newRows[T](s, z, nil)
	if !s.oneIn(20) {
		step.Positions, step.CuSeqlens, step.FreqSets, step.BatchRepeat = rope.Positions{}, nil, nil, 0
		step.Shard = rope.Shard{}
		if step.Operation != rope.OperationBackward {
			step.Operation = rope.OperationForward
		}
	}
	return read
}

// newRows are rows of cos and sin and their memory; write: a call that sees these sizes writes them.
func newRows[T rope.Element](s *source, z sizes, write *sizes) (*rope.CosSin, []guarded) {
	format := s.below(6)
	if write != nil || s.oneIn(20) {
		format = s.below(7) // the last one is not read
	}
	width, n := 2*z.info.Pairs, z.batch*z.tokens
	if format == 2 {
		width = z.info.Pairs
	}
	stride := 0
	if s.oneIn(4) {
		stride = width + s.below(9)
	}
	shared := s.oneIn(5) && write == nil
	if shared {
		n = z.tokens
	}
	heads, headStride := z.info.FreqHeads, 0
	if heads == 0 && s.oneIn(3) && write == nil {
		heads = 1 + s.below(3)
	}
	if heads != 0 {
		n *= heads
		if s.oneIn(2) { // [batch, heads, tokens, row]
			stride = max(width, stride)
			headStride = z.tokens * stride
		} else if stride != 0 {
			stride *= heads
		}
	}
	length := s.length(25, n*max(width, stride))
	a, b := fence(s, length, element[T](s)), fence(s, length, element[T](s))
	rows := []func() *rope.CosSin{
		func() *rope.CosSin { return rope.Packed(a.inside) },
		func() *rope.CosSin { return rope.PackedSinFirst(a.inside) },
		func() *rope.CosSin { return rope.Split(a.inside, b.inside) },
		func() *rope.CosSin { return rope.FullHalves(a.inside, b.inside) },
		func() *rope.CosSin { return rope.FullInterleaved(a.inside, b.inside) },
		func() *rope.CosSin { return rope.Complex(a.inside) },
		func() *rope.CosSin { return rope.Sinusoidal(a.inside) },
	}[format]()
	rows.Stride, rows.Shared = s.number(stride), shared
	rows.Heads, rows.HeadStride = s.number(heads), s.number(headStride)
	if write != nil {
		forEachRow(rows, *write, width, func(at int) {
			if at >= 0 && at <= length-width { // else the call must be refused
				a.allow(at, width)
				b.allow(at, width)
			}
		})
	}
	return rows, []guarded{a, b}
}

// forEachRow calls f with where each row begins; hostile strides wrap.
func forEachRow(rows *rope.CosSin, z sizes, width int, f func(at int)) {
	heads := max(1, min(64, rows.Heads))
	token, head := rows.Stride, rows.HeadStride
	if token == 0 {
		token = heads * width
	}
	batch := max(z.tokens*token, heads*head)
	if head == 0 {
		head = width
	}
	for b := range z.batch {
		for t := range z.tokens {
			for h := range heads {
				f(b*batch + t*token + h*head)
			}
		}
	}
}
