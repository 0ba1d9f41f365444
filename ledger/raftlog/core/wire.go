package core

import (
	"encoding/binary"
	"errors"
	"fmt"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// MessageBytes returns how many bytes AppendMessage appends for a message.
func MessageBytes(m *pb.Message) int {
	n := proto.Size(m)
	return n + len(binary.AppendUvarint(nil, uint64(n)))
}

// AppendMessage appends a length-prefixed message to b.
func AppendMessage(b []byte, m *pb.Message) ([]byte, error) {
	b = binary.AppendUvarint(b, uint64(proto.Size(m)))
	b, err := proto.MarshalOptions{}.MarshalAppend(b, m)
	if err != nil {
		return nil, fmt.Errorf("core: a message of type %v: %w", m.GetType(), err)
	}
	return b, nil
}

// DecodeMessages decodes messages written by AppendMessage. They do not retain b's memory.
func DecodeMessages(b []byte) ([]*pb.Message, error) {
	var messages []*pb.Message
	for len(b) > 0 {
		length, n := binary.Uvarint(b)
		if n <= 0 || length > uint64(len(b)-n) {
			return nil, errors.New("core: a message is cut off")
		}
		m := new(pb.Message)
		if err := proto.Unmarshal(b[n:n+int(length)], m); err != nil {
			return nil, fmt.Errorf("core: message %d: %w", len(messages)+1, err)
		}
		messages = append(messages, m)
		b = b[n+int(length):]
	}
	return messages, nil
}
