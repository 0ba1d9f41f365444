package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seqledger/seqledger/internal/testkit/process"
)

const natsSettings = "sync_interval=always, file storage, one replica; publish with Nats-Msg-Id and " +
	"Nats-Expected-Last-Subject-Sequence"

// serveNATS is the server's process.
func serveNATS(ctx context.Context, dir string) error {
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir, SyncAlways: true, NoSigs: true,
	})
	if err != nil {
		return err
	}
	s.Start()
	defer func() {
		s.Shutdown()
		s.WaitForShutdown()
	}()
	if !s.ReadyForConnections(process.StartsWithin) {
		return errors.New("the server does not take connections")
	}
	fmt.Println(s.ClientURL())
	<-ctx.Done()
	return nil
}

// natsServer is a NATS server process.
type natsServer struct {
	child

	// last is the stream's sequence of the last message on each subject. The
	// client has to know it, as it has to know its own sequence with the others.
	last sync.Map
}

func newNATS() system {
	n := new(natsServer)
	n.launch = func(ctx context.Context) error { return n.self(ctx, "nats") }
	return n
}

func (n *natsServer) start(ctx context.Context, dir string) error {
	if err := n.child.start(ctx, dir); err != nil {
		return err
	}
	c, err := nats.Connect(n.address)
	if err != nil {
		return err
	}
	defer c.Close()
	js, err := jetstream.New(c)
	if err != nil {
		return err
	}
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{
		Name: "ledger", Subjects: []string{"w.*"}, Storage: jetstream.FileStorage, Replicas: 1,
		Duplicates: 2 * time.Minute,
	})
	return err
}

func (n *natsServer) connect(_ context.Context, at placement) (conn, error) {
	c := &natsConn{server: n}
	for range at.connections {
		one, err := nats.Connect(n.address)
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
		c.connections = append(c.connections, one)
		js, err := jetstream.New(one)
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
		c.streams = append(c.streams, js)
	}
	return c, nil
}

// natsConn publishes over some connections, each shared by many callers.
type natsConn struct {
	server      *natsServer
	connections []*nats.Conn
	streams     []jetstream.JetStream
}

// publish sends a write that has to come after expected, or without a place.
func (c *natsConn) publish(ctx context.Context, j *job, expected *uint64) (*jetstream.PubAck, error) {
	message := nats.NewMsg("w." + j.client())
	message.Data = j.payload
	key := j.key()
	message.Header.Set(jetstream.MsgIDHeader, string(fmt.Appendf(nil, "%x", key)))
	if expected != nil {
		message.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(*expected, 10))
	}
	return c.streams[j.stream%len(c.streams)].PublishMsg(ctx, message)
}

// do leaves the expected sequence of a repeat away, because the server looks at it before it
// looks for the message's id, and refuses the very request that it has stored.
func (c *natsConn) do(ctx context.Context, j *job, repeat bool) (answer, error) {
	known, _ := c.server.last.Load(j.stream)
	last, _ := known.(uint64)
	expected := &last
	if repeat {
		expected = nil
	}
	ack, err := c.publish(ctx, j, expected)
	if err != nil {
		return answer{}, err
	}
	if !repeat && ack.Duplicate {
		return answer{}, errors.New("a new write was taken for a repeat")
	}
	if !repeat {
		c.server.last.Store(j.stream, ack.Sequence)
	}
	return answer{reply: strconv.FormatUint(ack.Sequence, 10), replayed: ack.Duplicate}, nil
}

func (c *natsConn) close() error {
	for _, one := range c.connections {
		one.Close()
	}
	return nil
}
