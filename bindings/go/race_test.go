//go:build race

package rope

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"unsafe"
)

// appendBlocks stores a key of two blocks in a slot of this memory.
func appendBlocks(c *Context, q []float32, slot int32) error {
	cache := KVCache[Q80, Q80]{K: NHD(unsafe.Slice((*Q80)(unsafe.Pointer(unsafe.SliceData(q))), 8), 1), Pages: 1, PageSize: 4}
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(0), Slots: LinearSlots([]int32{slot})}
	return Append(c, Tensor[float32]{}, BSHD(make([]float32, 64), 1), Tensor[float32]{}, cache, step)
}

// What two goroutines share in the cases below: calls on one slice are races, on parts are not.
var raceCases = map[string]struct {
	race bool
	call func(c *Context, q []float32, side int) error
}{
	"one slice, ApplyTHD": {true, func(c *Context, q []float32, _ int) error {
		return ApplyTHD(c, []int64{1, 2}, q, 2, nil, 0)
	}},
	"one slice, ApplyQK": {true, func(c *Context, q []float32, _ int) error {
		return ApplyQK(c, Tensor[float32]{}, BSHD(q, 2), Step{Batch: 1, Tokens: 2, Positions: Offset(0)})
	}},
	"one output": {true, func(c *Context, q []float32, _ int) error {
		in := BSHD(make([]float32, len(q)), 2)
		return ApplyQKTo(c, BSHD(q, 2), Tensor[float32]{}, in, Tensor[float32]{},
			Step{Batch: 1, Tokens: 2, Positions: Offset(0)})
	}},
	"one table": {true, func(c *Context, q []float32, _ int) error {
		return FillCosSin(c, Step{Batch: 1, Tokens: 4, Positions: Offset(0)}, Packed(q))
	}},
	"a table is read beside its writer": {true, func(c *Context, q []float32, side int) error {
		step := Step{Batch: 1, Tokens: 4, Positions: Offset(0)}
		if side == 0 {
			return FillCosSin(c, step, Packed(q))
		}
		step.Positions, step.CosSin = Positions{}, Packed(q)
		return ApplyQK(c, BSHD(make([]float32, len(q)), 1), Tensor[float32]{}, step)
	}},
	"a head each": {false, func(c *Context, q []float32, side int) error {
		head := Strided(q[side*64:], 1, Strides{Token: 128})
		return ApplyQK(c, head, Tensor[float32]{}, Step{Batch: 1, Tokens: 2, Positions: Offset(0)})
	}},
	"one input": {false, func(c *Context, q []float32, _ int) error {
		out := BSHD(make([]float32, len(q)), 2)
		return ApplyQKTo(c, out, Tensor[float32]{}, BSHD(q, 2), Tensor[float32]{},
			Step{Batch: 1, Tokens: 2, Positions: Offset(0)})
	}},
	"one slice, prepared": {true, func(c *Context, q []float32, _ int) error {
		p, err := Prepare(c, BSHD[float32](nil, 2), Tensor[float32]{}, Step{Batch: 1, Tokens: 2, Positions: Offset(0)})
		if err != nil {
			return err
		}
		return p.Apply(q, nil)
	}},
	"one scale that is given, of a description that changes": {false, func(c *Context, q []float32, _ int) error {
		return callGiven(c, q[:1])
	}},
	"a head each, prepared": {false, func(c *Context, q []float32, side int) error {
		head := Strided[float32](nil, 1, Strides{Token: 128})
		p, err := Prepare(c, Tensor[float32]{}, head, Step{Batch: 1, Tokens: 2, Positions: Offset(0)})
		if err != nil {
			return err
		}
		return p.Apply(nil, q[side*64:])
	}},
	"one output, prepared": {true, func(c *Context, q []float32, _ int) error {
		p, err := PrepareTo(c, BHSD[float32](nil, 2), Tensor[float32]{}, BSHD[float32](nil, 2), Tensor[float32]{},
			Step{Batch: 1, Tokens: 2, Positions: Offset(0)})
		if err != nil {
			return err
		}
		return p.ApplyTo(q, nil, make([]float32, len(q)), nil)
	}},
	"a table is prepared beside its writer": {true, func(c *Context, q []float32, side int) error {
		step := Step{Batch: 1, Tokens: 4, Positions: Offset(0)}
		if side == 0 {
			return FillCosSin(c, step, Packed(q))
		}
		step.Positions, step.CosSin = Positions{}, Packed(q)
		_, err := Prepare(c, BSHD[float32](nil, 1), Tensor[float32]{}, step)
		return err
	}},
	"one slot": {true, func(c *Context, q []float32, _ int) error {
		return appendOne(c, q, MappedSlots([]int32{1}))
	}},
	"one slot of page tables": {true, func(c *Context, q []float32, side int) error {
		return appendOne(c, q, PagedSlots([]int32{int32(1 - side), 1}[side:][:1], 1, []int32{0}))
	}},
	"a slot each": {false, func(c *Context, q []float32, side int) error {
		return appendOne(c, q, MappedSlots([]int64{int64(3 - side)}))
	}},
	"a page each": {false, func(c *Context, q []float32, side int) error {
		return appendOne(c, q, RaggedSlots([]int32{1, 0}[side:], []int32{0, 1}, []int32{1}))
	}},
	"a page each in one table": {false, func(c *Context, q []float32, side int) error {
		k, step := BSHD(make([]float32, 2*64), 1), Step{Batch: 2, Tokens: 1, Positions: Offset(0)}
		step.Slots = PagedSlots([]int32{[]int32{0, -1}[side], []int32{-1, 1}[side]}, 1, []int32{0, 1})
		cache := KVCache[float32, float32]{K: HND(q, 1), Pages: 2, PageSize: 2}
		return Append(c, Tensor[float32]{}, k, Tensor[float32]{}, cache, step)
	}},
	"a key is read beside its writer": {true, func(c *Context, q []float32, side int) error {
		if side == 0 {
			return ApplyQK(c, BSHD(q[:64], 1), Tensor[float32]{}, Step{Batch: 1, Tokens: 1, Positions: Offset(0)})
		}
		cache := KVCache[float32, float32]{K: NHD(make([]float32, 64), 1), Pages: 1, PageSize: 1}
		step := Step{Batch: 1, Tokens: 1, Positions: Offset(0), Slots: LinearSlots([]int32{0})}
		return Append(c, Tensor[float32]{}, BSHD(q[:64], 1), Tensor[float32]{}, cache, step)
	}},
	"one key": {false, func(c *Context, q []float32, side int) error {
		cache := KVCache[float32, float32]{K: NHD(make([]float32, 64), 1), V: NHD(make([]float32, 64), 1), Pages: 1, PageSize: 1}
		step := Step{Batch: 1, Tokens: 1, Positions: Offset(0), Slots: LinearSlots([]int32{0})}
		return Append(c, Tensor[float32]{}, BSHD(q[:64], 1), BSHD(q[:64], 1), cache, step)
	}},
	"one slot of values": {true, func(c *Context, q []float32, _ int) error {
		cache := KVCache[float32, float32]{V: HND(q, 1), Pages: 1, PageSize: 4}
		step := Step{Batch: 1, Tokens: 1, Positions: Offset(0), Slots: LinearSlots([]int32{2})}
		return Append(c, BSHD(make([]float32, 64), 1), Tensor[float32]{}, BSHD(make([]float32, 64), 1), cache, step)
	}},
	"one slot, prepared": {true, func(c *Context, q []float32, _ int) error {
		return appendPrepared(c, q, 2)
	}},
	"a slot each, prepared": {false, func(c *Context, q []float32, side int) error {
		return appendPrepared(c, q, int32(2+side))
	}},
	"a scale that is read beside its writer": {true, func(c *Context, q []float32, side int) error {
		cache := KVCache[int8, int8]{K: NHD(make([]int8, 64), 1), Pages: 1, PageSize: 1}
		step := Step{Batch: 1, Tokens: 1, Slots: LinearSlots([]int32{0}), Positions: Offset(0)}
		if side == 0 {
			cache.KScale = &Scale{Data: q[:1], Computed: true}
			return Append(c, Tensor[float32]{}, BSHD(make([]float32, 64), 1), Tensor[float32]{}, cache, step)
		}
		cache.KScale = &Scale{Data: q[:1]}
		to := KVCache[float32, float32]{K: NHD(make([]float32, 64), 1), Pages: 1, PageSize: 1}
		step.Operation, step.From = OperationRerotate, &step.Positions
		return MoveBetween(c, cache, to, step)
	}},
	"a key that turns in its slot": {true, func(c *Context, q []float32, _ int) error {
		return moveOne(c, q, nil, nil, 1)
	}},
	"a key of a context that turns nothing, in its slot": {false, func(_ *Context, q []float32, _ int) error {
		c, err := New(Config{HeadDim: 64, Scaling: ScalingNope})
		if err != nil {
			return err
		}
		return moveOne(c, q, nil, nil, 1)
	}},
	"a value whose key turns in its slot": {false, func(c *Context, q []float32, _ int) error {
		return moveOne(c, make([]float32, len(q)), q, nil, 1)
	}},
	"a value whose key turns in its slot, which is named twice": {false, func(c *Context, q []float32, _ int) error {
		return moveOne(c, make([]float32, len(q)), q, MappedSlots([]int32{1}), 1)
	}},
	"a value that moves": {true, func(c *Context, q []float32, _ int) error {
		return moveOne(c, make([]float32, len(q)), q, MappedSlots([]int32{2}), 1)
	}},
	"a value that two moves read": {false, func(c *Context, q []float32, side int) error {
		return moveOne(c, make([]float32, len(q)), q, MappedSlots([]int32{2}), int32(side))
	}},
	"a token that is read nowhere": {false, func(c *Context, q []float32, _ int) error {
		return moveOne(c, q, make([]float32, len(q)), MappedSlots([]int32{-1}), 1)
	}},
	"a value that stays beside its writer": {false, func(c *Context, q []float32, side int) error {
		if side == 0 {
			return moveOne(c, make([]float32, len(q)), q, nil, 1)
		}
		return ApplyQK(c, BSHD(q[64:128], 1), Tensor[float32]{}, Step{Batch: 1, Tokens: 1, Positions: Offset(0)})
	}},
	"what does not turn of a key that stays, beside its writer": {false, func(_ *Context, q []float32, side int) error {
		c, err := New(Config{HeadDim: 64, RotaryDim: 48, Theta: 10000, Pairing: PairingHalves})
		if err != nil {
			return err
		}
		if side == 0 {
			q[64+48] = 1
			return nil
		}
		return moveOne(c, q, nil, nil, 1)
	}},
	"one slot of blocks": {true, func(c *Context, q []float32, _ int) error {
		return appendBlocks(c, q, 2)
	}},
	"a slot of blocks each": {false, func(c *Context, q []float32, side int) error {
		return appendBlocks(c, q, int32(2+side))
	}},
	"one output of a Call": {true, func(c *Context, q []float32, _ int) error {
		in := BSHD(make([]BFloat16, len(q)), 2).Any()
		return Apply(c, Call{Q: in, QOut: BSHD(q, 2).Any()}, Step{Batch: 1, Tokens: 2, Positions: Offset(0)})
	}},
	"one input of a Call": {false, func(c *Context, q []float32, _ int) error {
		out := BSHD(make([]BFloat16, len(q)), 2).Any()
		return Apply(c, Call{Q: BSHD(q, 2).Any(), QOut: out}, Step{Batch: 1, Tokens: 2, Positions: Offset(0)})
	}},
	"one array of scales": {true, func(c *Context, q []float32, _ int) error {
		return callScaled(c, q[:4], 0)
	}},
	"scales of a token each": {false, func(c *Context, q []float32, side int) error {
		return callScaled(c, q[2*side:2*side+2], 2)
	}},
	"one slot of a Call": {true, func(c *Context, q []float32, _ int) error {
		return callStores(c, q, 2)
	}},
	"a slot of a Call each": {false, func(c *Context, q []float32, side int) error {
		return callStores(c, q, int32(2+side))
	}},
	"one gradient": {true, func(c *Context, q []float32, _ int) error {
		norm := &Norm{Kind: NormKindRMS, Eps: 1, Weight: ArrayOf(make([]float32, 64)), GradParts: 1, WeightGrad: q[:64],
			X: BSHD(make([]float32, 64), 1).Any()}
		step := Step{Batch: 1, Tokens: 1, Positions: Offset(0), Operation: OperationBackward, Norms: &Norms{Q: norm}}
		return ApplyQK(c, BSHD(make([]float32, 64), 1), Tensor[float32]{}, step)
	}},
	"a weight is read beside its writer, prepared": {true, func(c *Context, q []float32, side int) error {
		if side == 0 {
			return ApplyQK(c, BSHD(q[:64], 1), Tensor[float32]{}, Step{Batch: 1, Tokens: 1, Positions: Offset(0)})
		}
		return normPrepared(c, make([]float32, 64), q[:64])
	}},
	"one weight, prepared": {false, func(c *Context, q []float32, _ int) error {
		return normPrepared(c, make([]float32, 64), q[:64])
	}},
	"one slice that is normed and does not turn, prepared": {true, func(_ *Context, q []float32, _ int) error {
		c, err := New(Config{HeadDim: 64, Scaling: ScalingNope})
		if err != nil {
			return err
		}
		return normPrepared(c, q[:64], make([]float32, 64))
	}},
	"refused calls": {false, func(c *Context, q []float32, _ int) error {
		if ApplyQK(c, BSHD(q, 2), BSHD(q, 2), Step{Batch: 1, Tokens: 2, Positions: Offset(0)}) == nil {
			panic("an overlap was accepted")
		}
		return nil
	}},
}

// appendOne stores a key in one of the four slots of q.
func appendOne(c *Context, q []float32, slots *Slots) error {
	cache := KVCache[float32, float32]{K: NHD(q, 1), Pages: 2, PageSize: 2}
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(0), Slots: slots}
	return Append(c, Tensor[float32]{}, BSHD(make([]float32, 64), 1), Tensor[float32]{}, cache, step)
}

// moveOne moves a key to this slot of k, and the value beside it in v, if there are values.
func moveOne(c *Context, k, v []float32, source *Slots, slot int32) error {
	cache := KVCache[float32, float32]{K: NHD(k, 1), Pages: 2, PageSize: 2}
	if v != nil {
		cache.V = NHD(v, 1)
	}
	return MoveSlots(c, cache, Step{Batch: 1, Tokens: 1, Positions: Same(7), Operation: OperationShift, Source: source,
		Slots: MappedSlots([]int32{slot})})
}

// appendPrepared stores a key and a value in slots of q.
func appendPrepared(c *Context, q []float32, slot int32) error {
	head := BSHD[float32](nil, 1)
	cache := KVCache[float32, float32]{K: NHD[float32](nil, 1), V: NHD[float32](nil, 1), Pages: 2, PageSize: 2}
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(0), Slots: MappedSlots([]int32{slot})}
	p, err := PrepareAppend(c, Tensor[float32]{}, head, head, cache, step)
	if err != nil {
		return err
	}
	return p.Apply(nil, make([]float32, 64), make([]float32, 64), make([]float32, len(q)), q)
}

// callScaled computes the scales of two tokens of two heads, or with a stride those of one.
func callScaled(c *Context, scales []float32, heads int) error {
	tokens := len(scales) / 2
	n := tokens * 2 * 64
	out := BSHD(make([]int8, n), 2).Any().WithScale(&Scale{Data: scales, Computed: true})
	if heads != 0 {
		out.scale.Strides = &Strides{Token: heads, Head: 1}
	}
	call := Call{Q: BSHD(make([]float32, n), 2).Any(), QOut: out}
	return Apply(c, call, Step{Batch: 1, Tokens: tokens, Positions: Offset(0)})
}

// callStores stores a key in one of the slots of q, in a call that is prepared.
func callStores(c *Context, q []float32, slot int32) error {
	call := Call{K: BSHD[float32](nil, 1).Any(), Cache: &Cache{K: NHD[float32](nil, 1).Any(), Pages: 2, PageSize: 2}}
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(0), Slots: MappedSlots([]int32{slot})}
	p, err := PrepareCall(c, call, step)
	if err != nil {
		return err
	}
	return p.Apply(Layer{K: ArrayOf(make([]float32, 64)), CacheK: ArrayOf(q)})
}

// normPrepared norms q by this weight, in a call that is prepared.
func normPrepared(c *Context, q, weight []float32) error {
	norm := &Norm{Kind: NormKindRMS, Eps: 1, Weight: ArrayOf(weight[:0])}
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(0), Norms: &Norms{Q: norm}}
	p, err := PrepareCall(c, Call{Q: BSHD[float32](nil, 1).Any()}, step)
	if err != nil {
		return err
	}
	return p.Apply(Layer{Q: ArrayOf(q), QNormWeight: ArrayOf(weight)})
}

// callGiven reads one scale for the codes of q, whose description serves for something else once the call is prepared.
func callGiven(c *Context, scales []float32) error {
	scale := &Scale{Data: []float32{}, Strides: &Strides{}, Group: 64}
	call := Call{Q: BSHD[float32](nil, 1).Any(), QOut: BSHD[int8](nil, 1).Any().WithScale(scale)}
	p, err := PrepareCall(c, call, Step{Batch: 1, Tokens: 2, Positions: Offset(0)})
	if err != nil {
		return err
	}
	scale.Computed, scale.Group, scale.Strides.Token = true, 1, 1<<44
	return p.Apply(Layer{Q: ArrayOf(make([]float32, 128)), QOut: ArrayOf(make([]int8, 128)), QOutScales: ArrayOf(scales)})
}

// The race detector ends a test that has a race, so each case is a process.
func TestRaceDetectorSeesC(t *testing.T) {
	const variable = "LIBROPE_TEST_RACE"
	if name := os.Getenv(variable); name != "" {
		c := mustNew(t, plain(64))
		q := make([]float32, 2*2*64)
		var wait sync.WaitGroup
		for side := range 2 {
			wait.Add(1)
			go func() {
				defer wait.Done()
				if err := raceCases[name].call(c, q, side); err != nil {
					t.Error(err)
				}
			}()
		}
		wait.Wait()
		return
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range raceCases {
		child := exec.Command(program, "-test.run=^TestRaceDetectorSeesC$")
		child.Env = append(os.Environ(), variable+"="+name)
		output, err := child.CombinedOutput()
		if raced := strings.Contains(string(output), "WARNING: DATA RACE"); raced != test.race || (err == nil) == test.race {
			t.Errorf("%s: race %v, want %v: %v\n%s", name, raced, test.race, err, output)
		}
	}
}
