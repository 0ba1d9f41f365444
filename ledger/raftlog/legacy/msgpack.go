package legacy

import "encoding/binary"

// isWhole tells whether b begins with one whole value of MessagePack, of the kinds
// that a membership is made of. Raft's decoder takes memory for what an extension
// says that it has, before it looks whether that is there.
func isWhole(b []byte) bool {
	for values := uint64(1); values > 0; values-- {
		if len(b) == 0 {
			return false
		}
		sizes, ok := sizesOf(b[0])
		if !ok || len(b) < 1+sizes.number {
			return false
		}
		n := sizes.fixed
		if sizes.number > 0 {
			var number [8]byte
			copy(number[8-sizes.number:], b[1:])
			n = binary.BigEndian.Uint64(number[:])
		}
		b = b[1+sizes.number:]
		switch {
		case sizes.values > 0:
			values += n * sizes.values // each takes a byte at least
		case n > uint64(len(b)):
			return false
		default:
			b = b[n:]
		}
	}
	return true
}

// msgpackSizes is how a value goes on behind its first byte.
type msgpackSizes struct {
	number int    // bytes of a number, which counts what follows it
	fixed  uint64 // the same without such a number
	values uint64 // what is counted: values, two for each element of a map; 0: bytes
}

// sizesOf reads the first byte of a value. The table is the one of MessagePack's
// specification, without extensions.
func sizesOf(kind byte) (s msgpackSizes, ok bool) {
	switch {
	case kind < 0x80, kind >= 0xe0, kind == 0xc0, kind == 0xc2, kind == 0xc3: // small numbers, nil, booleans
	case kind < 0x90:
		s.fixed, s.values = uint64(kind&0x0f), 2
	case kind < 0xa0:
		s.fixed, s.values = uint64(kind&0x0f), 1
	case kind < 0xc0:
		s.fixed = uint64(kind & 0x1f)
	case kind >= 0xc4 && kind <= 0xc6: // binary
		s.number = 1 << (kind - 0xc4)
	case kind == 0xca, kind == 0xcb: // floating point
		s.fixed = 4 << (kind - 0xca)
	case kind >= 0xcc && kind <= 0xcf: // unsigned
		s.fixed = 1 << (kind - 0xcc)
	case kind >= 0xd0 && kind <= 0xd3: // signed
		s.fixed = 1 << (kind - 0xd0)
	case kind >= 0xd9 && kind <= 0xdb: // text
		s.number = 1 << (kind - 0xd9)
	case kind == 0xdc, kind == 0xdd:
		s.number, s.values = 2<<(kind-0xdc), 1
	case kind == 0xde, kind == 0xdf:
		s.number, s.values = 2<<(kind-0xde), 2
	default:
		return s, false
	}
	return s, true
}
