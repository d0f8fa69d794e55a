package rope

// #include "shim.h"
import "C"

import "unsafe"

// What calls that succeeded have read and written, for the race detector, which sees Go's accesses
// only: exactly these elements, because goroutines may share a buffer whose parts they own.

// tellRace reports the arrays of a step; rows is a call that writes its rows.
func (step *Step) tellRace(c *contextState, writes bool) {
	batch, tokens := step.Batch, step.Tokens
	if batch == 0 || tokens == 0 { // nothing is read, though the other number may be huge
		return
	}
	if p := &step.Positions; p.ids != nil {
		size := uint64(4)
		if p.typ == 8 {
			size = 8
		}
		if p.kind != C.ROPE_POSITIONS_IDS_STRIDED {
			raceRead(p.ids, uint64(p.len)*size)
		} else {
			blocks(raceRead, p.ids, size, [3]int{c.info.Axes, batch, tokens},
				[3]int{p.strideAxis, p.strideBatch, p.strideToken}, 0, 1)
		}
	}
	raceRead(unsafe.Pointer(unsafe.SliceData(step.CuSeqlens)), uint64(len(step.CuSeqlens))*4)
	raceRead(unsafe.Pointer(unsafe.SliceData(step.FreqSets)), uint64(len(step.FreqSets))*4)
	if r := step.CosSin; r != nil {
		tell, width := raceRead, r.width(c.info.Pairs)
		if writes {
			tell = raceWrite
		}
		strides, _ := r.strides(width, tokens)
		if r.Shared && !writes {
			batch = min(batch, 1)
		}
		for _, data := range []unsafe.Pointer{r.data, r.sin} {
			if data != nil {
				blocks(tell, data, r.element, [3]int{batch, tokens, max(1, r.Heads)}, strides, 0, width)
			}
		}
	}
}

// tellRace reports one input and its output, which may be nil.
func tellRace[T Element](in, out *Tensor[T], c *contextState, step *Step) {
	if in.empty() || step.Batch == 0 || step.Tokens == 0 {
		return
	}
	size := uint64(unsafe.Sizeof(in.Data[0]))
	inPlace := out == nil || out.zero() || unsafe.SliceData(out.Data) == unsafe.SliceData(in.Data)
	if inPlace {
		out = in
	}
	counts := [3]int{step.Batch, step.Tokens, in.Heads}
	report := func(tell func(unsafe.Pointer, uint64), t *Tensor[T]) {
		first, width := 0, c.info.RotaryDim
		switch {
		case !inPlace && !in.Span && !out.Span:
			width = c.info.HeadDim // the rest is copied
		case !t.Span:
			first = c.info.RotaryOffset
		}
		blocks(tell, unsafe.Pointer(unsafe.SliceData(t.Data)), size, counts, t.strides(c, step), first, width)
	}
	if !inPlace {
		report(raceRead, in)
	}
	if !inPlace || !c.nope {
		report(raceWrite, out)
	}
}

// strides are those of the layout, in the order batch, token, head.
func (t *Tensor[T]) strides(c *contextState, step *Step) [3]int {
	dim := t.channels(c)
	switch t.Layout {
	case LayoutBSHD:
		return [3]int{step.Tokens * t.Heads * dim, t.Heads * dim, dim}
	case LayoutBHSD:
		return [3]int{t.Heads * step.Tokens * dim, dim, step.Tokens * dim}
	case LayoutSBHD:
		return [3]int{t.Heads * dim, step.Batch * t.Heads * dim, dim}
	}
	return [3]int{t.Strides.Batch, t.Strides.Token, t.Strides.Head}
}

// blocks tells of width elements, from the element first on, at every point of a grid.
func blocks(tell func(unsafe.Pointer, uint64), data unsafe.Pointer, size uint64, counts, strides [3]int,
	first, width int) {
	for a := range counts[0] {
		for b := range counts[1] {
			for c := range counts[2] {
				at := a*strides[0] + b*strides[1] + c*strides[2] + first
				tell(unsafe.Add(data, uintptr(at)*uintptr(size)), uint64(width)*size)
			}
		}
	}
}
