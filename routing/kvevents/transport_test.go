package kvevents

import (
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// Over tcp and ipc, whoever of the two listens: a message arrives, the caller
// sees that the connection ended, and nothing is connected again behind its
// back; when it connects again itself it gets what is published from then on.
func TestEveryTransportCarriesInBothDirectionsAndShowsItsEnd(t *testing.T) {
	for _, transport := range []string{"tcp", "ipc"} {
		for _, subscriberListens := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, the subscriber listens: %v", transport, subscriberListens), func(t *testing.T) {
				endpoint := "tcp://127.0.0.1:0"
				if transport == "ipc" {
					endpoint = "ipc://" + filepath.Join(t.TempDir(), "e")
				}
				var lis *Listener
				if subscriberListens {
					var err error
					if lis, err = Listen(endpoint, SUB, quick); err != nil {
						t.Fatal(err)
					}
					defer lis.Close()
				}
				for round := range uint64(3) {
					conn, pub := meet(t, lis, endpoint)
					if err := conn.Subscribe(""); err != nil {
						t.Fatal(err)
					}
					received := make(chan error, 1)
					go func() {
						parts, err := conn.Recv()
						if err == nil {
							var m Message
							if m, err = ParseMessage(parts); err == nil && m.Seq != round {
								err = fmt.Errorf("message %d in round %d", m.Seq, round)
							}
						}
						received <- err
					}()
					// A subscription takes effect when the publisher has read it.
					for sent := false; !sent; {
						if err := pub.Publish("", round, []byte("x")); err != nil {
							t.Fatal(err)
						}
						select {
						case err := <-received:
							if err != nil {
								t.Fatal(err)
							}
							sent = true
						case <-time.After(5 * time.Millisecond):
						}
					}
					if err := pub.Close(); err != nil {
						t.Fatal(err)
					}
					for { // what was sent more than once
						if _, err := conn.Recv(); err != nil {
							break
						}
					}
					_ = conn.Close()
				}
			})
		}
	}
}

// meet connects a subscriber and a publisher.
func meet(t *testing.T, lis *Listener, endpoint string) (*Conn, *Publisher) {
	t.Helper()
	if lis == nil {
		pub, err := NewPublisher(PublisherConfig{Listen: endpoint})
		if err != nil {
			t.Fatal(err)
		}
		conn, err := Dial(t.Context(), pub.Addr(), SUB, quick)
		if err != nil {
			t.Fatal(err)
		}
		return conn, pub
	}
	pub, err := NewPublisher(PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = pub.Connect(t.Context(), lis.Addr()) }() // returns when the subscriber goes
	conn, err := lis.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return conn, pub
}

// A listener outlives peers of every bad kind and still takes a good one, over
// either transport.
func TestAListenerOutlivesBadPeers(t *testing.T) {
	for _, transport := range []string{"tcp", "ipc"} {
		t.Run(transport, func(t *testing.T) {
			endpoint := "tcp://127.0.0.1:0"
			if transport == "ipc" {
				endpoint = "ipc://" + filepath.Join(t.TempDir(), "e")
			}
			lis, err := Listen(endpoint, SUB, quick)
			if err != nil {
				t.Fatal(err)
			}
			defer lis.Close()
			network, address := "tcp", lis.Addr()[len("tcp://"):]
			if transport == "ipc" {
				network = "unix"
			}
			for _, behave := range []func(net.Conn){
				func(c net.Conn) { _ = c.Close() },
				says([]byte("GET / HTTP/1.1\r\n\r\n")),
				says(greeting()[:20]),
				says(rawReady(1, "SUB")),
				says(greeting(), []byte{flagCommand | flagLong, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}),
			} {
				c, err := net.Dial(network, address)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				behave(c)
			}
			pub, err := NewPublisher(PublisherConfig{})
			if err != nil {
				t.Fatal(err)
			}
			defer pub.Close()
			go func() { _ = pub.Connect(t.Context(), lis.Addr()) }() // returns when the subscriber goes
			conn, err := lis.Accept()
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.Close()
		})
	}
}
