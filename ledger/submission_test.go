package ledger

import "testing"

// The frames of a submission are not in memory that the next one uses.
func TestWriteBufferTake(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, longBuffer, longBuffer + 1} {
		buffer := new(writeBuffer)
		frames := buffer.take(append(buffer.memory, make([]byte, size)...))
		if len(frames) != size || cap(buffer.memory) > 0 && &frames[0] == &buffer.memory[:1][0] {
			t.Errorf("%d bytes: the next submission has the same memory", size)
		}
	}
}
