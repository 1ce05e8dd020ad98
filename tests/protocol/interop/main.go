// interop plays Go's gRPC library to a unix socket, as client or as server, with messages of plain bytes.
// The client prints one line for each thing it tried; the server echoes until it is killed.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

type raw struct{}

func (raw) Marshal(v interface{}) ([]byte, error) { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v interface{}) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}
func (raw) Name() string { return "proto" }

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: interop client|server SOCKET")
		os.Exit(2)
	}
	if os.Args[1] == "server" {
		serve(os.Args[2])
		return
	}
	conn, err := grpc.Dial("unix://"+os.Args[2], grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		fmt.Println("dial", err)
		os.Exit(1)
	}
	defer conn.Close()
	for _, size := range []int{0, 1, 1000, 65535, 1 << 20, 9 << 20} {
		echo(conn, size)
	}
	many(conn)
	refusals(conn)
	stream(conn)
}

func echo(conn *grpc.ClientConn, size int) {
	sent := bytes.Repeat([]byte{7}, size)
	got := []byte{}
	err := conn.Invoke(context.Background(), "/test/Echo", &sent, &got)
	fmt.Println("echo", size, err == nil && bytes.Equal(sent, got))
}

func many(conn *grpc.ClientConn) {
	var wait sync.WaitGroup
	failed := make(chan error, 500)
	for i := 0; i < 500; i++ {
		wait.Add(1)
		go func(i int) {
			defer wait.Done()
			sent := []byte(fmt.Sprint(i))
			got := []byte{}
			ctx := metadata.AppendToOutgoingContext(context.Background(), fmt.Sprintf("x-%d", i%50), "some value")
			if err := conn.Invoke(ctx, "/test/Echo", &sent, &got); err != nil || !bytes.Equal(sent, got) {
				failed <- fmt.Errorf("%d: %v", i, err)
			}
		}(i)
	}
	wait.Wait()
	fmt.Println("many", len(failed))
}

func refusals(conn *grpc.ClientConn) {
	message, got := []byte("x"), []byte{}
	err := conn.Invoke(context.Background(), "/test/Nothing", &message, &got)
	fmt.Println("unknown", status.Code(err))
	err = conn.Invoke(context.Background(), "/test/Refuse", &message, &got)
	fmt.Println("refused", status.Code(err), status.Convert(err).Message())
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	err = conn.Invoke(ctx, "/test/Never", &message, &got)
	fmt.Println("deadline", status.Code(err))
}

func stream(conn *grpc.ClientConn) {
	description := grpc.StreamDesc{ServerStreams: true}
	open, err := conn.NewStream(context.Background(), &description, "/test/Repeat")
	if err != nil {
		fmt.Println("stream", err)
		return
	}
	sent := bytes.Repeat([]byte{9}, 4<<20-5)
	if err := open.SendMsg(&sent); err != nil {
		fmt.Println("stream", err)
	}
	open.CloseSend()
	count := 0
	for {
		got := []byte{}
		if err := open.RecvMsg(&got); err != nil {
			fmt.Println("stream", count, err == io.EOF)
			return
		}
		if bytes.Equal(sent, got) {
			count++
		}
	}
}

func serve(path string) {
	listener, err := net.Listen("unix", path)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	handler := func(_ interface{}, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		message := []byte{}
		if err := stream.RecvMsg(&message); err != nil {
			return err
		}
		switch method {
		case "/test/Echo":
			return stream.SendMsg(&message)
		case "/test/Repeat":
			for i := 0; i < 3; i++ {
				if err := stream.SendMsg(&message); err != nil {
					return err
				}
			}
			return nil
		case "/test/Never":
			<-stream.Context().Done()
			return stream.Context().Err()
		}
		return status.Error(3, "naïve: 100 %\n")
	}
	server := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(handler),
		grpc.MaxRecvMsgSize(64<<20), grpc.MaxSendMsgSize(64<<20))
	fmt.Println("listening")
	if err := server.Serve(listener); err != nil {
		fmt.Println(err)
	}
}
