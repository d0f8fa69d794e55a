package rope

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func mustPrepare[Q, K Element](t testing.TB, c *Context, q Tensor[Q], k Tensor[K], step Step) *Prepared[Q, K] {
	t.Helper()
	p, err := Prepare(c, q, k, step)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// randomShape is a tensor of a random layout without a slice, and how long its slice is.
func randomShape[T Element](r *rand.Rand, batch, tokens, heads, headDim int) (Tensor[T], int) {
	tensor := Tensor[T]{Heads: heads, Layout: Layout(1 + r.IntN(4))}
	if tensor.Layout != LayoutStrided {
		return tensor, batch * tokens * heads * headDim
	}
	gap := r.IntN(5)
	row := (headDim+gap)*heads + gap
	tensor.Strides = Strides{Head: headDim + gap, Token: row, Batch: row * tokens}
	return tensor, row*tokens*batch + r.IntN(3) // longer slices are allowed
}

// operandOf is q or k of one call, with its output.
type operandOf[T Element] struct {
	in, out         Tensor[T]
	inSize, outSize int
}

// randomOperand is absent (0), in place (1) or has an output (2).
func randomOperand[T Element](r *rand.Rand, kind, batch, tokens, headDim int) (o operandOf[T]) {
	if kind == 0 {
		return o
	}
	heads := 1 + r.IntN(5)
	o.in, o.inSize = randomShape[T](r, batch, tokens, heads, headDim)
	if kind == 2 {
		o.out, o.outSize = randomShape[T](r, batch, tokens, heads, headDim)
	}
	return o
}

// withData fills an operand; the zero tensor stays one.
func (o operandOf[T]) withData(r *rand.Rand) operandOf[T] {
	if o.in.Heads != 0 {
		o.in.Data = random[T](r, o.inSize)
	}
	if o.out.Heads != 0 {
		o.out.Data = random[T](r, o.outSize)
	}
	return o
}

func (o operandOf[T]) clone() operandOf[T] {
	o.in.Data, o.out.Data = slices.Clone(o.in.Data), slices.Clone(o.out.Data)
	return o
}

func (o operandOf[T]) sameData(other operandOf[T]) bool {
	return slices.Equal(o.in.Data, other.in.Data) && slices.Equal(o.out.Data, other.out.Data)
}

// preparedCase is one random call, whose positions are others once it is prepared.
func preparedCase[Q, K Element](t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 31))
	headDim := 8 * (1 + r.IntN(16))
	rotaryDim := 2 * (1 + r.IntN(headDim/2))
	c := mustNew(t, Config{HeadDim: headDim, Theta: 1e4, RotaryDim: rotaryDim,
		RotaryOffset: r.IntN(headDim - rotaryDim + 1),
		Pairing:      []Pairing{PairingHalves, PairingInterleaved, PairingInterleavedToHalves}[r.IntN(3)],
		Rounding:     []Rounding{RoundingFloat32, RoundingEager, RoundingCosSin}[r.IntN(3)]})
	batch, tokens := 1+r.IntN(3), 1+r.IntN(6)
	kinds := [][2]int{{1, 1}, {1, 1}, {1, 0}, {0, 1}, {2, 2}, {2, 1}, {2, 0}}[r.IntN(7)]
	q := randomOperand[Q](r, kinds[0], batch, tokens, headDim)
	k := randomOperand[K](r, kinds[1], batch, tokens, headDim)

	ids := make([]int64, batch*tokens)
	for i := range ids {
		ids[i] = r.Int64N(1 << 20)
	}
	kept := slices.Clone(ids)
	rows := make([]float32, batch*tokens*rotaryDim)
	keptRows := slices.Clone(rows)
	steps := func(ids []int64, rows []float32) Step {
		step := Step{Batch: batch, Tokens: tokens, Operation: Operation(seed % 2)}
		switch seed / 2 % 5 {
		case 0:
			step.Positions = Offset(kept[0])
		case 1:
			step.Positions = SeqOffsets(ids[:batch])
		case 2:
			step.Positions = BatchTokenIDs(ids)
		case 3:
			step.Positions = Same(kept[0])
		case 4:
			step.CosSin = Packed(rows)
		}
		return step
	}
	if err := FillCosSin(c, Step{Batch: batch, Tokens: tokens, Positions: BatchTokenIDs(ids)}, Packed(rows)); err != nil {
		t.Fatal(err)
	}
	copy(keptRows, rows)

	inPlace := kinds[0] != 2 && kinds[1] != 2
	var p *Prepared[Q, K]
	var err error
	if step := steps(ids, rows); inPlace {
		p, err = Prepare(c, q.in, k.in, step)
	} else {
		p, err = PrepareTo(c, q.out, k.out, q.in, k.in, step)
	}
	if err != nil {
		t.Fatalf("case %d: %v", seed, err)
	}
	defer p.Close()
	for i := range ids {
		ids[i] = -ids[i]
	}
	clear(rows)
	for layer := range 2 {
		q, k := q.withData(r), k.withData(r)
		before, wantQ, wantK := q.clone(), q.clone(), k.clone()
		if err := ApplyQKTo(c, wantQ.out, wantK.out, wantQ.in, wantK.in, steps(kept, keptRows)); err != nil {
			t.Fatalf("case %d: %v", seed, err)
		}
		if inPlace {
			err = p.Apply(q.in.Data, k.in.Data)
		} else {
			err = p.ApplyTo(q.out.Data, k.out.Data, q.in.Data, k.in.Data)
		}
		if err != nil || !q.sameData(wantQ) || !k.sameData(wantK) {
			t.Fatalf("case %d, layer %d: other bits than those of the call, or %v", seed, layer, err)
		}
		if kinds[0] != 0 && q.sameData(before) {
			t.Fatalf("case %d: nothing has turned", seed)
		}
	}
}

func TestPreparedGivesTheBitsOfTheCall(t *testing.T) {
	for name, try := range map[string]func(*testing.T, uint64){
		"float32":           preparedCase[float32, float32],
		"Float16":           preparedCase[Float16, Float16],
		"BFloat16":          preparedCase[BFloat16, BFloat16],
		"float32, BFloat16": preparedCase[float32, BFloat16],
		"BFloat16, Float16": preparedCase[BFloat16, Float16],
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(300) {
				try(t, seed)
			}
		})
	}
}

// Packed sequences, spans, several axes and frequency sets are described as for ApplyQK.
func TestPreparedTakesEveryStep(t *testing.T) {
	r := rand.New(rand.NewPCG(33, 34))
	sets, err := NewSets([]Config{plain(64), {HeadDim: 64, Theta: 5e5, Pairing: PairingHalves}})
	if err != nil {
		t.Fatal(err)
	}
	defer sets.Close()
	axes := mustNew(t, Config{HeadDim: 64, Theta: 1e4, Pairing: PairingHalves, Axes: 3, MRopeSection: []int{8, 12, 12}})
	partial := mustNew(t, Config{HeadDim: 64, Theta: 1e4, Pairing: PairingInterleaved, RotaryDim: 32, RotaryOffset: 16})
	span := Strided[float32](nil, 2, Strides{Token: 128, Head: 64})
	span.Span = true
	pool, err := NewPool(2)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for name, test := range map[string]struct {
		c      *Context
		q      Tensor[float32]
		length int
		step   Step
	}{
		"packed, sets": {sets, BSHD[float32](nil, 2), 5 * 128, Step{Batch: 1, Tokens: 5,
			Positions: SeqOffsets([]int32{7, 900}), CuSeqlens: []int32{0, 2, 5}, FreqSets: []int32{1, 0}}},
		"axes": {axes, BHSD[float32](nil, 2), 2 * 128, Step{Batch: 1, Tokens: 2,
			Positions: AxesBatchTokenIDs([]int32{1, 2, 3, 4, 5, 6})}},
		"span":    {partial, span, 128 + 64 + 32, Step{Batch: 1, Tokens: 2, Positions: TokenIDs([]int64{-5, 1 << 40})}},
		"inverse": {partial, SBHD[float32](nil, 2), 6 * 128, Step{Batch: 3, Tokens: 2, Operation: OperationInverse, Positions: Offset(9)}},
		"pool":    {partial, BSHD[float32](nil, 2), 2200 * 128, Step{Batch: 1, Tokens: 2200, Pool: pool, Positions: Offset(9)}},
	} {
		p := mustPrepare(t, test.c, test.q, Tensor[Float16]{}, test.step)
		x := random[float32](r, test.length)
		got, want := slices.Clone(x), test.q
		want.Data = slices.Clone(x)
		if err := ApplyQK(test.c, want, Tensor[Float16]{}, test.step); err != nil {
			t.Fatal(name, err)
		}
		if err := p.Apply(got, nil); err != nil || !slices.Equal(got, want.Data) || slices.Equal(got, x) {
			t.Error(name, err)
		}
	}
}

func TestPreparedRefusesOtherSlices(t *testing.T) {
	c := mustNew(t, plain(64))
	const tokens = 3
	x := slices.Repeat([]float32{1}, 8*tokens*128)
	before := slices.Clone(x)
	at := func(n, length int) []float32 { return x[n*tokens*128:][:length] } // n: none of them overlaps
	const n, reach = tokens * 128, 2*160 + 96 + 64                           // of q, and of k
	step := Step{Batch: 1, Tokens: tokens, Positions: Offset(1)}
	q, k := BSHD[float32](nil, 2), Strided[float32](nil, 2, Strides{Token: 160, Head: 96})
	none := Tensor[float32]{}
	prepare := func(qOut, kOut, q, k Tensor[float32], step Step) *Prepared[float32, float32] {
		p, err := PrepareTo(c, qOut, kOut, q, k, step)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p
	}
	both := mustPrepare(t, c, q, k, step)
	for _, layout := range []Layout{LayoutBSHD, LayoutBHSD, LayoutSBHD} {
		one := mustPrepare(t, c, Tensor[float32]{Layout: layout, Heads: 2}, none, step)
		for _, length := range []int{0, 1, 64, n - 1, n + 1, 2 * n} {
			refused(t, one.Apply(at(0, length), nil), fmt.Sprintf("rope.Prepared.Apply: q with batch 1, tokens 3, heads 2, "+
				"channels 64 and %v does not fit its slice of %d elements, which it must fill", layout, length))
		}
		refused(t, one.Apply(nil, nil), "slice of 0 elements")
		refused(t, one.Apply(nil, at(0, n)), "q with batch 1")
		refused(t, one.Apply(at(0, n), at(1, n)), "k (384 elements) must be nil: the prepared call has no k")
		refused(t, one.ApplyTo(at(1, n), nil, at(0, n), nil), "rope.Prepared.ApplyTo: qOut (384 elements) must be nil")
		refused(t, one.ApplyTo(nil, at(1, 1), at(0, n), nil), "kOut (1 elements) must be nil")
	}
	for _, length := range []int{0, 64, reach - 1} {
		refused(t, both.Apply(at(0, n), at(2, length)), fmt.Sprintf("k with batch 1, tokens 3, heads 2, channels 64, LayoutStrided "+
			"and strides {Batch:0 Token:160 Head:96} does not fit its slice of %d elements", length))
	}
	refused(t, both.Apply(nil, at(2, reach)), "q with batch 1")
	refused(t, both.Apply(at(2, n), at(2, reach)), "rope.Prepared.Apply: q overlaps k")
	to := prepare(q, none, q, k, step)
	refused(t, to.Apply(at(0, n), at(2, reach)), "qOut with batch 1")
	refused(t, to.ApplyTo(at(4, n-1), nil, at(0, n), at(2, reach)), "slice of 383 elements, which it must fill")
	refused(t, to.ApplyTo(at(4, n), at(5, reach), at(0, n), at(2, reach)), "kOut (480 elements) must be nil")
	refused(t, to.ApplyTo(x[64:][:n], nil, at(0, n), at(4, reach)), "rope.Prepared.ApplyTo: qOut overlaps q")

	// A batch that was forgotten, where no slice is too long.
	forgotten := Step{Tokens: tokens, Positions: Offset(1)}
	p := mustPrepare(t, c, none, k, forgotten)
	refused(t, p.Apply(nil, at(2, reach)), "Step.Batch (0) is required")
	refused(t, mustPrepare(t, c, k, none, forgotten).Apply(at(2, reach), nil), "Step.Batch (0) is required")
	refused(t, mustPrepare(t, c, q, none, forgotten).Apply(at(0, n), nil), "Step.Batch (0) is required")
	if !slices.Equal(x, before) {
		t.Error("an error wrote something")
	}
	for name, err := range map[string]error{
		"no batch rows":              p.Apply(nil, nil),
		"no tokens":                  mustPrepare(t, c, q, k, Step{Batch: 1, Positions: Offset(1)}).Apply(nil, at(2, reach)),
		"none, an empty slice":       mustPrepare(t, c, q, none, step).ApplyTo(x[:0], x[:0], at(0, n), x[:0]),
		"its own input":              to.ApplyTo(at(0, n), nil, at(0, n), at(2, reach)),
		"longer than strides reach":  both.Apply(at(0, n), at(2, reach+7)),
		"empty descriptions of none": mustPrepare(t, c, q, BSHD(x[:0], 0), step).Apply(at(0, n), nil),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What ApplyQK refuses, Prepare does, and shapes that no slice has.
func TestPrepareRefusesCalls(t *testing.T) {
	c := mustNew(t, plain(64))
	x := make([]float32, 2*128)
	none := Tensor[float32]{}
	good := Step{Batch: 1, Tokens: 2, Positions: Offset(1)}
	try := func(q Tensor[float32], words string, change ...func(*Step)) {
		t.Helper()
		step := good
		for _, f := range change {
			f(&step)
		}
		p, err := Prepare(c, q, none, step)
		refused(t, err, words)
		if p != nil {
			t.Error("a prepared call beside an error")
		}
	}
	q := BSHD[float32](nil, 2)
	try(BSHD(x, 2), "rope.Prepare: q.Data (256 elements) must be nil: slices come with each Apply")
	try(none, "q and k")
	try(BSHD[float32](nil, -2), "q with batch 1, tokens 2, heads -2, channels 64 and LayoutBSHD fits no slice")
	try(BSHD[float32](nil, math.MaxInt), "fits no slice")
	try(Tensor[float32]{Heads: 2}, "q.Layout (0)")
	try(Strided[float32](nil, 2, Strides{Token: -128, Head: 64}), "fits no slice")
	try(Strided[float32](nil, 2, Strides{Token: math.MaxInt, Head: math.MaxInt}), "fits no slice")
	try(Strided[float32](nil, 2, Strides{Token: 128}), "overlap")
	try(q, "Batch (-1)", func(s *Step) { s.Batch = -1 })
	try(q, "Tokens (-2)", func(s *Step) { s.Tokens = -2 })
	try(q, "fits no slice", func(s *Step) { s.Tokens = math.MaxInt })
	try(q, "Step.Positions or Step.CosSin", func(s *Step) { s.Positions = Positions{} })
	try(q, "3 entries", func(s *Step) { s.Positions = TokenIDs([]int32{1, 2, 3}) })
	try(q, "CuSeqlens[1] (3)", func(s *Step) { s.CuSeqlens = []int32{0, 3} })
	try(q, "95 elements", func(s *Step) { s.Positions, s.CosSin = Positions{}, Packed(make([]float32, 95)) })
	_, err := PrepareTo(c, BSHD[float32](nil, 3), none, q, none, good)
	refused(t, err, "rope.PrepareTo: qOut.Heads (3)")
	_, err = PrepareTo(c, none, BSHD(x, 2), q, q, good)
	refused(t, err, "kOut.Data (256 elements) must be nil")
	_, err = PrepareTo(c, BSHD(x[:0], 0), none, q, none, good)
	refused(t, err, "qOut.Heads (0)")
	_, err = Prepare(c, q, none, Step{Batch: 1, Tokens: 1 << 50, Positions: Offset(0)})
	if !errors.Is(err, ErrOutOfMemory) {
		t.Error(err)
	}
}

// A prepared call keeps its context: not longer than it lives, closed or forgotten.
func TestPreparedKeepsItsContext(t *testing.T) {
	q := BSHD[float32](nil, 1)
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(9)}
	r := rand.New(rand.NewPCG(35, 36))
	x := random[float32](r, 64)
	want := slices.Clone(x)
	if err := ApplyTHD(mustNew(t, plain(64)), []int64{9}, want, 1, nil, 0); err != nil {
		t.Fatal(err)
	}
	for _, forget := range []bool{false, true} {
		c, err := New(plain(64))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Prepare(c, BSHD(x, 1), Tensor[float32]{}, step); err == nil { // which keeps nothing
			t.Fatal("a slice was accepted")
		}
		p, err := Prepare(c, q, Tensor[float32]{}, step)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		if _, err := Prepare(c, q, Tensor[float32]{}, step); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		runtime.GC()
		freed := &c.handle.body.freed
		if freed.Load() {
			t.Fatal("the context is freed before its prepared call")
		}
		got := slices.Clone(x)
		if err := p.Apply(got, nil); err != nil || !slices.Equal(got, want) {
			t.Error(err)
		}
		if !forget {
			p.Close()
		}
		p = nil
		for n := 0; forget && !freed.Load() && n < 1000; n++ { // cleanups run on a goroutine after the collection
			runtime.GC()
			time.Sleep(time.Millisecond)
		}
		if !freed.Load() {
			t.Errorf("the context is not freed with its prepared call; forgotten: %v", forget)
		}
	}
}

func TestPreparedClosed(t *testing.T) {
	c := mustNew(t, plain(64))
	q, none := BSHD[float32](nil, 1), Tensor[float32]{}
	x := make([]float32, 64)
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(0)}
	p := mustPrepare(t, c, q, none, step)
	other := copyOf(p)
	if err := other.Apply(x, nil); err != nil {
		t.Error(err)
	}
	for range 2 { // a copy that was made in spite of go vet is freed once
		if err := errors.Join(p.Close(), other.Close()); err != nil {
			t.Error(err)
		}
		runtime.GC()
	}
	var zero Prepared[float32, float32]
	var missing *Prepared[float32, float32]
	for _, err := range []error{p.Apply(x, nil), p.Apply(nil, nil), p.ApplyTo(nil, nil, x, nil), other.Apply(x, nil),
		zero.Apply(x, nil), missing.Apply(x, nil)} {
		if !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}
	if zero.Close() != nil || missing.Close() != nil {
		t.Error("closing nothing is nothing")
	}
	for _, c := range []*Context{nil, {}} {
		if _, err := Prepare(c, q, none, step); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}

	pool, err := NewPool(2)
	if err != nil {
		t.Fatal(err)
	}
	step.Pool = pool
	p = mustPrepare(t, c, q, none, step)
	if err := p.Apply(x, nil); err != nil {
		t.Error(err)
	}
	pool.Close()
	if err := p.Apply(x, nil); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := Prepare(c, q, none, step); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// Goroutines share one prepared call, with and without a pool, and it is closed beside them.
func TestPreparedBesideCalls(t *testing.T) {
	const tokens = 700 // long enough for the pool
	pool, err := NewPool(2)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	r := rand.New(rand.NewPCG(37, 38))
	x, y := random[float32](r, tokens*8*64), random[BFloat16](r, tokens*64)
	wantX, wantY := slices.Clone(x), slices.Clone(y)
	step := Step{Batch: 1, Tokens: tokens, Positions: Offset(7)}
	c := mustNew(t, plain(64))
	if err := ApplyQK(c, BSHD(wantX, 8), BSHD(wantY, 1), step); err != nil {
		t.Fatal(err)
	}
	var turned, closed atomic.Int64
	for n := range 20 {
		if step.Pool = nil; n%2 == 0 {
			step.Pool = pool
		}
		p := mustPrepare(t, c, BSHD[float32](nil, 8), BSHD[BFloat16](nil, 1), step)
		var wait sync.WaitGroup
		started := make(chan struct{}, 8)
		for range 8 {
			wait.Add(1)
			go func() {
				defer wait.Done()
				gotX, gotY := make([]float32, len(x)), make([]BFloat16, len(y))
				for n := range 5 {
					copy(gotX, x)
					copy(gotY, y)
					err := p.Apply(gotX, gotY)
					if n == 0 {
						started <- struct{}{}
					}
					switch {
					case err == nil && slices.Equal(gotX, wantX) && slices.Equal(gotY, wantY):
						turned.Add(1)
					case errors.Is(err, ErrClosed) && slices.Equal(gotX, x) && slices.Equal(gotY, y):
						closed.Add(1)
					default:
						t.Error("another result beside Close:", err)
						return
					}
					if err := p.Apply(gotX[1:], gotY); err == nil || !errors.Is(err, ErrClosed) &&
						!strings.Contains(err.Error(), "does not fit") {
						t.Error(err)
					}
				}
			}()
		}
		<-started
		if n%4 < 2 { // the others turn everything
			p.Close()
		}
		wait.Wait()
	}
	if turned.Load() == 0 || closed.Load() == 0 {
		t.Errorf("%d calls turned, %d were refused: nothing ran beside Close", turned.Load(), closed.Load())
	}
}

func TestPreparedDoesNotAllocate(t *testing.T) {
	c := mustNew(t, plain(64))
	pool, err := NewPool(2)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	q, k := make([]BFloat16, 4*64), make([]BFloat16, 2*64)
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(5), Pool: pool}
	p := mustPrepare(t, c, BSHD[BFloat16](nil, 4), BSHD[BFloat16](nil, 2), step)
	if n := testing.AllocsPerRun(1000, func() {
		if err := p.Apply(q, k); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("Apply allocates %v times", n)
	}
}
