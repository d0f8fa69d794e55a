package rope

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
)

// What a library may know and this package does not is refused by name, and never taken for something
// else.

// What a kind of positions reads is known here, or the call is refused before the library sees it.
func TestAKindOfPositionsThatIsNotKnownHereIsRefused(t *testing.T) {
	c, err := New(Config{HeadDim: 8, Theta: 10000, Pairing: PairingHalves})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	q := make([]float32, 2*8)
	for kind := int32(3); kind < 20; kind++ {
		step := Step{Batch: 1, Tokens: 2, Positions: positionsOf(kind, []int64{5})}
		err := ApplyQK(c, BSHD(q, 1), Tensor[float32]{}, step)
		// One id serves two tokens where all strides are 0, and nowhere else.
		if strided := kind == StridedIDs([]int64{5}, 0, 0, 0).kind; strided != (err == nil) {
			t.Errorf("kind %d: %v", kind, err)
		} else if !strided && !strings.Contains(err.Error(), "positions (1 entries) must fit") {
			t.Errorf("kind %d: %v", kind, err)
		}
	}
}

// The library's device is one of this package's, or reading it is an error: no other device is main
// memory.
func TestADeviceThatIsNotKnownHereIsAnError(t *testing.T) {
	for number := int32(-1); number < 20; number++ {
		got, err := deviceOf(number, 3)
		switch number {
		case 0, 1: // DLPack's number of the CPU
			if err != nil || got != (Device{Index: 3}) {
				t.Error(number, got, err)
			}
		case 2: // and of CUDA
			if err != nil || got != (Device{CUDA: true, Index: 3}) {
				t.Error(number, got, err)
			}
		default:
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("device (%d)", number)) {
				t.Error(number, got, err)
			}
		}
	}
}

// Every DType has its OutputElement, but for that of scales; and a type that is none has no DType.
func TestEveryDTypeHasAnElement(t *testing.T) {
	type named float32
	if got := dtypeOf[named](); got != DTypeF32 {
		t.Error(got)
	}
	elements := map[DType]bool{dtypeOf[float32](): true, dtypeOf[Float16](): true, dtypeOf[BFloat16](): true,
		dtypeOf[F8E4M3](): true, dtypeOf[F8E5M2](): true, dtypeOf[int8](): true, dtypeOf[Q80](): true}
	for _, c := range constants {
		dtype := DType(c.value)
		if c.kind == "DType" && dtype != DTypeE8M0 && !elements[dtype] {
			t.Errorf("no OutputElement is %s: tensor.go", c.name)
		}
	}
	for _, got := range []DType{dtypeOf[float64](), dtypeOf[int32](), dtypeOf[uint16](), dtypeOf[[4]byte]()} {
		if got != 0 {
			t.Error(got)
		}
	}
}

// Rows of a format that came after the loaded library.
func TestRowsThatTheLibraryDoesNotKnowAreRefused(t *testing.T) {
	c := mustNew(t, plain(8))
	last := int32(len(rowFormats))
	for _, format := range []int32{-1, last, last + 1, math.MaxInt32} {
		rows := rowsOf(format, make([]float32, 16), make([]float32, 16))
		step := Step{Batch: 1, Tokens: 2, Positions: Offset(0)}
		read := Step{Batch: 1, Tokens: 2, CosSin: rows}
		for _, err := range []error{FillCosSin(c, step, rows),
			ApplyQK(c, BSHD(make([]float32, 16), 1), Tensor[float32]{}, read)} {
			if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), fmt.Sprintf("rows of format %d", format)) {
				t.Error(err)
			}
		}
	}
}

// The race detector is told of every element of a contiguous tensor, and of no other.
func TestEveryLayoutHasItsStrides(t *testing.T) {
	step := &Step{Batch: 2, Tokens: 3}
	for _, c := range constants {
		if c.kind != "Layout" || Layout(c.value) == LayoutStrided {
			continue
		}
		tensor := Tensor[float32]{Layout: Layout(c.value), Heads: 5}
		s := tensor.strides(8, step)
		if last := 1*s[0] + 2*s[1] + 4*s[2] + 8; last != 2*3*5*8 || min(s[0], s[1], s[2]) != 8 {
			t.Errorf("%s: strides %v; race.go", c.name, s)
		}
	}
}
