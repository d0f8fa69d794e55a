//go:build cgo

package rope

import "fmt"

// constant is one enumerator: C's name, which messages of the library use, and Go's.
type constant[T ~int32] struct {
	c     string
	value T
	name  string
}

type constants[T ~int32] []constant[T]

func (table constants[T]) nameOf(value T, kind string) string {
	for _, c := range table {
		if c.value == value {
			return c.name
		}
	}
	return fmt.Sprintf("%s(%d)", kind, int32(value))
}

var (
	pairings = constants[Pairing]{
		{"ROPE_PAIRING_HALVES", Halves, "Halves"},
		{"ROPE_PAIRING_INTERLEAVED", Interleaved, "Interleaved"},
		{"ROPE_PAIRING_INTERLEAVED_TO_HALVES", InterleavedToHalves, "InterleavedToHalves"},
		{"ROPE_PAIRING_HALVES_PER_AXIS", HalvesPerAxis, "HalvesPerAxis"},
	}
	scalings = constants[Scaling]{
		{"ROPE_SCALING_DEFAULT", DefaultScaling, "DefaultScaling"},
		{"ROPE_SCALING_LINEAR", Linear, "Linear"},
		{"ROPE_SCALING_DYNAMIC", Dynamic, "Dynamic"},
		{"ROPE_SCALING_YARN", Yarn, "Yarn"},
		{"ROPE_SCALING_LONGROPE", LongRope, "LongRope"},
		{"ROPE_SCALING_LLAMA3", Llama3, "Llama3"},
		{"ROPE_SCALING_PROPORTIONAL", Proportional, "Proportional"},
		{"ROPE_SCALING_NOPE", Nope, "Nope"},
		{"ROPE_SCALING_DYNAMIC_STEPS", DynamicSteps, "DynamicSteps"},
	}
	angles = constants[Angle]{
		{"ROPE_ANGLE_FLOAT32", AngleFloat32, "AngleFloat32"},
		{"ROPE_ANGLE_EXACT", AngleExact, "AngleExact"},
		{"ROPE_ANGLE_GGML", AngleGGML, "AngleGGML"},
	}
	roundings = constants[Rounding]{
		{"ROPE_ROUNDING_FLOAT32", RoundOnStore, "RoundOnStore"},
		{"ROPE_ROUNDING_EAGER", RoundEager, "RoundEager"},
		{"ROPE_ROUNDING_COS_SIN", RoundCosSin, "RoundCosSin"},
	}
	dtypes = constants[DType]{
		{"ROPE_DTYPE_F32", F32, "F32"},
		{"ROPE_DTYPE_F16", F16, "F16"},
		{"ROPE_DTYPE_BF16", BF16, "BF16"},
	}
	layouts = constants[Layout]{
		{"ROPE_LAYOUT_BSHD", LayoutBSHD, "LayoutBSHD"},
		{"ROPE_LAYOUT_BHSD", LayoutBHSD, "LayoutBHSD"},
		{"ROPE_LAYOUT_SBHD", LayoutSBHD, "LayoutSBHD"},
		{"ROPE_LAYOUT_STRIDED", LayoutStrided, "LayoutStrided"},
	}
	operations = constants[Operation]{
		{"ROPE_OPERATION_FORWARD", Forward, "Forward"},
		{"ROPE_OPERATION_BACKWARD", Backward, "Backward"},
		{"ROPE_OPERATION_INVERSE", Inverse, "Inverse"},
		{"ROPE_OPERATION_SHIFT", Shift, "Shift"},
	}
)

// String is the name of the constant.
func (p Pairing) String() string { return pairings.nameOf(p, "Pairing") }

// String is the name of the constant.
func (s Scaling) String() string { return scalings.nameOf(s, "Scaling") }

// String is the name of the constant.
func (a Angle) String() string { return angles.nameOf(a, "Angle") }

// String is the name of the constant.
func (r Rounding) String() string { return roundings.nameOf(r, "Rounding") }

// String is the name of the constant.
func (d DType) String() string { return dtypes.nameOf(d, "DType") }

// String is the name of the constant.
func (l Layout) String() string { return layouts.nameOf(l, "Layout") }

// String is the name of the constant.
func (o Operation) String() string { return operations.nameOf(o, "Operation") }
