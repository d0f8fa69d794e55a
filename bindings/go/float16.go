//go:build cgo

package rope

import (
	"math"
	"strconv"
)

// BFloat16FromFloat32 rounds to nearest even. A NaN stays one.
func BFloat16FromFloat32(f float32) BFloat16 {
	bits := math.Float32bits(f)
	if f != f {
		return BFloat16(bits>>16 | 0x40) // what is cut off may have been all that made it a NaN
	}
	return BFloat16((bits + 0x7fff + bits>>16&1) >> 16)
}

// Float32 is the value, exactly.
func (b BFloat16) Float32() float32 { return math.Float32frombits(uint32(b) << 16) }

// String is the value.
func (b BFloat16) String() string { return text(b.Float32()) }

// Float16FromFloat32 rounds to nearest even; from 65520 on to infinity. A NaN stays one.
func Float16FromFloat32(f float32) Float16 {
	bits := math.Float32bits(f)
	sign, magnitude := Float16(bits>>16&0x8000), bits&0x7fffffff
	switch {
	case f != f:
		return sign | Float16(magnitude>>13&0x3ff) | 0x7e00
	case magnitude >= 0x47800000: // 65536
		return sign | 0x7c00
	case magnitude < 0x38800000: // below 2^-14, halves are multiples of 2^-24, as floats of 0.5 to 1 are
		fixed := math.Float32frombits(magnitude) + 0.5
		return sign | Float16(math.Float32bits(fixed)-math.Float32bits(0.5))
	}
	return sign | Float16((magnitude-112<<23+0xfff+magnitude>>13&1)>>13)
}

// Float32 is the value, exactly.
func (h Float16) Float32() float32 {
	sign, exponent, fraction := uint32(h)&0x8000<<16, uint32(h)>>10&0x1f, uint32(h)&0x3ff
	switch exponent {
	case 0:
		return math.Float32frombits(sign | math.Float32bits(float32(fraction)/(1<<24)))
	case 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | fraction<<13)
}

// String is the value.
func (h Float16) String() string { return text(h.Float32()) }

func text(f float32) string { return strconv.FormatFloat(float64(f), 'g', -1, 32) }
