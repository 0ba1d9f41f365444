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
	address string
	// last is the stream's sequence of the last message on each subject. The
	// client has to know it, as it has to know its own sequence with the others.
	last sync.Map
}

func (n *natsServer) launch(ctx context.Context, dir string) ([]*process.Process, error) {
	p, address, err := launchSelf(ctx, dir, "-serve", "nats")
	if err != nil {
		return nil, err
	}
	n.address = address
	started := []*process.Process{p}
	c, err := nats.Connect(n.address)
	if err != nil {
		return started, err
	}
	defer c.Close()
	js, err := jetstream.New(c)
	if err == nil {
		_, err = js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
			Name: "ledger", Subjects: []string{"w.*"}, Storage: jetstream.FileStorage, Replicas: 1,
			Duplicates: 2 * time.Minute,
		})
	}
	return started, err
}

func (n *natsServer) connect(_ context.Context, at placement) (conn, error) {
	c := &natsConn{server: n}
	for range at.connections {
		one, err := nats.Connect(n.address)
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
		js, err := jetstream.New(one)
		if err != nil {
			one.Close()
			return nil, errors.Join(err, c.close())
		}
		c.streams = append(c.streams, js)
	}
	return c, nil
}

// natsConn publishes over some connections, each shared by many callers.
type natsConn struct {
	server  *natsServer
	streams []jetstream.JetStream
}

// do leaves the expected sequence of a repeat away, because the server looks at it before it
// looks for the message's id, and refuses the very request that it has stored.
func (c *natsConn) do(ctx context.Context, j *job, repeat bool) (answer, error) {
	message := nats.NewMsg("w." + j.client())
	message.Data = j.payload
	message.Header.Set(jetstream.MsgIDHeader, fmt.Sprintf("%x", j.key()))
	if !repeat {
		known, _ := c.server.last.Load(j.stream)
		last, _ := known.(uint64)
		message.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(last, 10))
	}
	ack, err := c.streams[j.stream%len(c.streams)].PublishMsg(ctx, message)
	if err != nil {
		return answer{}, err
	}
	if !repeat {
		c.server.last.Store(j.stream, ack.Sequence)
	}
	return answer{reply: strconv.FormatUint(ack.Sequence, 10), replayed: ack.Duplicate}, nil
}

func (c *natsConn) close() error {
	for _, js := range c.streams {
		js.Conn().Close()
	}
	return nil
}
