package rope

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func ExampleMoveSlots() {
	rope, err := New(Config{HeadDim: 64, Theta: 10000, Pairing: PairingHalves})
	if err != nil {
		panic(err)
	}
	defer rope.Close()
	const heads, pages, pageSize = 2, 10, 16
	keys := make([]float32, pages*pageSize*heads*64)
	values := make([]float32, len(keys))
	cache := KVCache[float32, float32]{K: NHD(keys, heads), V: NHD(values, heads), Pages: pages, PageSize: pageSize}

	// The first of three pages is cut off: 20 tokens behind it turn where they are.
	kept := PagedSlots([]int32{7, 2}, 2, []int32{0})
	before := Offset(16)
	err = MoveSlots(rope, cache, Step{Batch: 1, Tokens: 20, Operation: OperationRerotate, From: &before,
		Positions: Offset(0), Slots: kept})
	if err != nil {
		panic(err)
	}
	// Another sequence has them from position 100 on, in pages of its own.
	before = Offset(0)
	err = MoveSlots(rope, cache, Step{Batch: 1, Tokens: 20, Operation: OperationRerotate, From: &before,
		Positions: Offset(100), Source: kept, Slots: PagedSlots([]int32{4, 5}, 2, []int32{0})})
	fmt.Println(err)
	// Output: <nil>
}

// What arrives has the bits of ApplyQK on keys that were gathered, and nothing else changes.
func TestMovesAreThoseOfGatheredKeys(t *testing.T) {
	const dim, heads, pages, pageSize, tokens = 32, 2, 12, 4, 9
	const row, half = heads * dim, pages * pageSize / 2
	rope, err := New(Config{HeadDim: dim, RotaryDim: 16, Theta: 10000, Pairing: PairingHalves})
	if err != nil {
		t.Fatal(err)
	}
	defer rope.Close()
	r := rand.New(rand.NewPCG(1, 2))
	numbers := func() []float32 {
		memory := make([]float32, pages*pageSize*row)
		for i := range memory {
			memory[i] = r.Float32()
		}
		return memory
	}
	places := func(first int) (slots []int64) {
		for _, n := range r.Perm(half)[:tokens] {
			slots = append(slots, int64(first+n))
		}
		return slots
	}
	gather := func(memory []float32, slots []int64) (rows []float32) {
		for _, slot := range slots {
			rows = append(rows, memory[slot*row:(slot+1)*row]...)
		}
		return rows
	}
	scatter := func(memory, rows []float32, slots []int64) {
		for i, slot := range slots {
			copy(memory[slot*row:], rows[i*row:(i+1)*row])
		}
	}
	for n := range 200 {
		k, v := numbers(), numbers()
		from, to := places(0), places(half)
		if n%3 == 0 {
			to = from
		}
		before, after := make([]int64, tokens), make([]int64, tokens)
		for i := range before {
			before[i], after[i] = r.Int64N(5000), r.Int64N(5000)
		}
		was := TokenIDs(before)
		step := Step{Batch: 1, Tokens: tokens, Positions: TokenIDs(after), Operation: OperationShift}
		if n%2 == 0 {
			step.Operation, step.From = OperationRerotate, &was
		}
		keys, values := gather(k, from), gather(v, from)
		if err := ApplyQK(rope, Tensor[float32]{}, BSHD(keys, heads), step); err != nil {
			t.Fatal(err)
		}
		cacheOf := func(k, v []float32) KVCache[float32, float32] {
			return KVCache[float32, float32]{K: NHD(k, heads), V: NHD(v, heads), Pages: pages, PageSize: pageSize}
		}
		step.Slots = MappedSlots(to)
		if n%3 != 0 || n%2 == 0 {
			step.Source = MappedSlots(from)
		}
		movedK, movedV := slices.Clone(k), slices.Clone(v)
		if err := MoveSlots(rope, cacheOf(movedK, movedV), step); err != nil {
			t.Fatal(err)
		}
		wantK, wantV := slices.Clone(k), slices.Clone(v)
		scatter(wantK, keys, to)
		scatter(wantV, values, to)
		if !slices.Equal(movedK, wantK) || !slices.Equal(movedV, wantV) {
			t.Fatal("in one cache", n)
		}
		otherK, otherV, fromK, fromV := numbers(), numbers(), slices.Clone(k), slices.Clone(v)
		wantK, wantV = slices.Clone(otherK), slices.Clone(otherV)
		scatter(wantK, keys, to)
		scatter(wantV, values, to)
		if err := MoveBetween(rope, cacheOf(fromK, fromV), cacheOf(otherK, otherV), step); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(otherK, wantK) || !slices.Equal(otherV, wantV) || !slices.Equal(fromK, k) ||
			!slices.Equal(fromV, v) {
			t.Fatal("between caches", n)
		}
	}
}

func TestMovesThatDoNotFitAreRefused(t *testing.T) {
	rope, err := New(Config{HeadDim: 8, Theta: 10000, Pairing: PairingHalves})
	if err != nil {
		t.Fatal(err)
	}
	defer rope.Close()
	k, q := make([]float32, 8*8), make([]float32, 2*8)
	cache := KVCache[float32, float32]{K: NHD(k, 1), Pages: 4, PageSize: 2}
	before := Offset(9)
	good := Step{Batch: 1, Tokens: 2, Positions: Offset(0), Operation: OperationRerotate, From: &before,
		Slots: MappedSlots([]int64{4, 5}), Source: MappedSlots([]int64{1, 2})}
	if err := MoveSlots(rope, cache, good); err != nil {
		t.Fatal(err)
	}
	move := func(change func(*Step)) error {
		step := good
		change(&step)
		return MoveSlots(rope, cache, step)
	}
	short := TokenIDs([]int64{1})
	for want, err := range map[string]error{
		"Step.Batch (0) is required":               move(func(s *Step) { s.Batch = 0 }),
		"Step.Slots is required":                   move(func(s *Step) { s.Slots = nil }),
		"Step.From is required":                    move(func(s *Step) { s.From = nil }),
		"nil with any other":                       move(func(s *Step) { s.Operation = OperationInverse }),
		"Step.Operation (OperationForward) must":   move(func(s *Step) { s.Operation, s.From = OperationForward, nil }),
		"Step.Unturned (true) must be false":       move(func(s *Step) { s.Unturned = true }),
		"positions (1 entries)":                    move(func(s *Step) { s.Positions = short }),
		"Step.From (1 entries) must fit batch 1":   move(func(s *Step) { s.From = &short }),
		"Step.From must be Offset, TokenIDs or":    move(func(s *Step) { s.From = &Positions{} }),
		": FreqSets (3 entries)":                   move(func(s *Step) { s.FreqSets = make([]int32, 3) }),
		"Step.FromFreqSets (3 entries) must have":  move(func(s *Step) { s.FromFreqSets = make([]int32, 3) }),
		"Source.slots[1] (8)":                      move(func(s *Step) { s.Source = MappedSlots([]int64{1, 8}) }),
		"Step.Source has 1 slot, and must have":    move(func(s *Step) { s.Source = MappedSlots([]int64{1}) }),
		"Step.Slots has 1 slot, and must have":     move(func(s *Step) { s.Slots = MappedSlots([]int64{4}) }),
		"token 1 of batch row 0 is read in slot 4": move(func(s *Step) { s.Source = MappedSlots([]int64{3, 4}) }),
		"Step.CosSin must be nil":                  move(func(s *Step) { s.CosSin = &CosSin{} }),
		"MoveSlots moves what":                     Append(rope, BSHD(q, 1), Tensor[float32]{}, Tensor[float32]{}, cache, good),
		"MoveSlots moves them":                     ApplyQK(rope, BSHD(q, 1), Tensor[float32]{}, good),
	} {
		if !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	// As the library says.
	err = move(func(s *Step) { s.Norms = &Norms{K: &Norm{Kind: NormKindRMSPlain, Eps: 1}} })
	if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "rope.MoveSlots: Step.Norms must be nil: keys that move") {
		t.Error(err)
	}
}

// Other calls than moves turn what they are given.
func TestUnturnedIsOfMovesAlone(t *testing.T) {
	c, before := mustNew(t, plain(8)), Offset(9)
	x, y, q, none := make([]float32, 8), make([]float32, 8), make([]float32, 8), Tensor[float32]{}
	for i := range x {
		x[i], y[i], q[i] = 1, 1, 1
	}
	k, memory := BSHD(x, 1), NHD(y, 1)
	shape, pages := BSHD[float32](nil, 1), NHD[float32](nil, 1)
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(3), Unturned: true}
	rerotate, stores := step, step
	rerotate.Operation, rerotate.From = OperationRerotate, &before
	stores.Slots = MappedSlots([]int32{0})
	cache := KVCache[float32, float32]{K: memory, Pages: 1, PageSize: 1}
	shapes := KVCache[float32, float32]{K: pages, Pages: 1, PageSize: 1}
	prepared := func(_ any, err error) error { return err }
	for function, err := range map[string]error{
		"ApplyQK":   ApplyQK(c, k, none, step),
		"ApplyQKTo": ApplyQKTo(c, BSHD(q, 1), none, k, none, rerotate),
		"Append":    Append(c, none, k, none, cache, stores),
		"AppendTo":  AppendTo(c, none, BSHD(q, 1), none, none, k, none, cache, stores),
		"Apply": Apply(c, Call{K: k.Any(), Cache: &Cache{K: memory.Any(), Pages: 1, PageSize: 1}},
			stores),
		"Prepare":         prepared(Prepare(c, shape, none, step)),
		"PrepareTo":       prepared(PrepareTo(c, shape, none, shape, none, step)),
		"PrepareAppend":   prepared(PrepareAppend(c, none, shape, none, shapes, stores)),
		"PrepareAppendTo": prepared(PrepareAppendTo(c, none, shape, none, none, shape, none, shapes, stores)),
		"PrepareCall":     prepared(PrepareCall(c, Call{Q: shape.Any()}, step)),
	} {
		refused(t, err, "rope."+function+": Step.Unturned (true) must be false: it is for the keys that MoveSlots")
	}
	if !slices.Equal(slices.Concat(x, y, q), slices.Repeat([]float32{1}, 24)) {
		t.Error("a refused call has written")
	}
	// Of a step, its positions count for rows of cos and sin.
	if err := FillCosSin(c, step, Packed(make([]float32, 8))); err != nil {
		t.Error(err)
	}
}

func TestKeysThatWereStoredAsTheyCameTurnByForward(t *testing.T) {
	c, nope := mustNew(t, plain(8)), mustNew(t, Config{HeadDim: 8, Scaling: ScalingNope})
	k := make([]float32, 4*8)
	for i := range k {
		k[i] = float32(i)
	}
	turned := slices.Clone(k[:2*8])
	step := Step{Batch: 1, Tokens: 2, Positions: Offset(9)}
	if err := ApplyQK(c, Tensor[float32]{}, BSHD(turned, 1), step); err != nil {
		t.Fatal(err)
	}
	step.Source, step.Slots = MappedSlots([]int64{0, 1}), MappedSlots([]int64{2, 3})
	unturned := step
	unturned.Unturned = true
	for _, test := range []struct {
		c    *Context
		step Step
		want []float32
	}{{c, unturned, turned}, {nope, step, k[:2*8]}, {nope, unturned, k[:2*8]}} {
		moved := slices.Clone(k)
		if err := MoveSlots(test.c, KVCache[float32, float32]{K: NHD(moved, 1), Pages: 1, PageSize: 4}, test.step); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(moved[2*8:], test.want) {
			t.Error("keys", moved[2*8:], "and not", test.want)
		}
	}
}

// Rows of a batch that share positions share those before the move, too.
func TestMoveOfRepeatedRows(t *testing.T) {
	rope, err := New(Config{HeadDim: 8, Theta: 10000, Pairing: PairingHalves})
	if err != nil {
		t.Fatal(err)
	}
	defer rope.Close()
	step := Step{Batch: 1, Tokens: 2, Positions: TokenIDs([]int64{7, 9}), Operation: OperationRerotate}
	from := TokenIDs([]int64{1, 30})
	step.From = &from
	row := make([]float32, 16)
	for i := range row {
		row[i] = float32(i*i%31) - 9
	}
	both := slices.Concat(row, row)
	if err := ApplyQK(rope, Tensor[float32]{}, BSHD(row, 1), step); err != nil {
		t.Fatal(err)
	}
	step.Batch, step.BatchRepeat = 2, 2
	if err := ApplyQK(rope, Tensor[float32]{}, BSHD(both, 1), step); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(both, slices.Concat(row, row)) {
		t.Error("other bits", both)
	}
}
