package machine

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/keyed"
)

// kept adds up the capacity, in bytes, of every slice and string that can be reached from a value, and
// names the largest.
type kept struct {
	seen   map[uintptr]bool
	bytes  int
	most   int
	widest string
}

func (k *kept) add(v reflect.Value, path string) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() || v.Kind() == reflect.Pointer && k.seen[v.Pointer()] {
			return
		}
		if v.Type() == reflect.TypeFor[*Memory]() {
			return // the storage, not the machine
		}
		if v.Kind() == reflect.Pointer {
			k.seen[v.Pointer()] = true
		}
		k.add(v.Elem(), path)
	case reflect.Struct:
		for i := range v.NumField() {
			k.add(v.Field(i), path+"."+v.Type().Field(i).Name)
		}
	case reflect.Map:
		for each := v.MapRange(); each.Next(); {
			k.add(each.Key(), path+"[key]")
			k.add(each.Value(), path+"[]")
		}
	case reflect.String:
		k.count(v.Len(), path)
	case reflect.Array:
		for i := range v.Len() {
			k.add(v.Index(i), path+"[]")
		}
	case reflect.Slice:
		k.count(v.Cap()*int(v.Type().Elem().Size()), path)
		// What lies behind the length is kept, too.
		for i, all := 0, v.Slice(0, v.Cap()); all.Len() > i && v.Type().Elem().Kind() != reflect.Uint8; i++ {
			k.add(all.Index(i), path+"[]")
		}
	}
}

func (k *kept) count(bytes int, path string) {
	k.bytes += bytes
	if bytes > k.most {
		k.most, k.widest = bytes, path
	}
}

// TestLargeEntriesLeaveNoBuffers: one tenant's largest writes must not cost memory for ever.
func TestLargeEntriesLeaveNoBuffers(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	measure := func() *kept {
		k := &kept{seen: map[uintptr]bool{}}
		k.add(reflect.ValueOf(f.m).Elem(), "Machine")
		return k
	}
	// The longest write, the most operations, and a keyed record with the longest response.
	value := strings.Repeat("x", MaxValueBytes)
	many := make([]Operation, MaxOperations)
	for i := range many {
		many[i] = set(strings.Repeat("k", MaxKeyBytes-4)+fmt.Sprintf("%04d", i), "y")
	}
	f.commit(operations("large", 1, 0, many...))
	f.commit(operations("large", 2, 0, set("a", value), set("b", value), set("c", value)))
	reserved := reserveKey(testKeyedID(1), 1, f.now)
	token := f.keyed(reserved, Keyed(keyed.Acquired)).Keyed.Record.Token
	complete := ownKey(keyed.Complete, reserved, token, []byte(value)[:keyed.MaxResponse])
	complete.Data = nil
	f.keyed(complete, Keyed(keyed.OK))
	f.commit(operations("large", 3, 0, set("a", value), set("b", value), set("c", value)))
	if k := measure(); k.bytes < maxBuffer {
		t.Fatalf("the large writes have left only %d bytes: the test writes too little", k.bytes)
	}
	f.commit(operations("small", 1, 0, set("d", "z")))
	small := reserveKey(testKeyedID(2), 1, f.now)
	f.keyed(small, Keyed(keyed.Acquired))
	f.commit(operations("small", 2, 0, set("d", "z")))
	if k := measure(); k.bytes > 2*maxBuffer {
		t.Errorf("after small writes the machine keeps %d bytes, %d of them in %s", k.bytes, k.most, k.widest)
	}
}
