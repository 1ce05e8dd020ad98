// Command yardstick is the least a device plugin in Go can be: what the benchmark measures ours beside where no
// other plugin is at hand. It checks nothing, knows no health and keeps no counts, so it is lighter than a real one.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const resource = "example.com/yardstick"

type plugin struct {
	api.UnimplementedDevicePluginServer
	devices []*api.Device
	ended   chan struct{}
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	if err := stream.Send(&api.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	select {
	case <-stream.Context().Done():
	case <-p.ended:
	}
	return nil
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		granted := &api.ContainerAllocateResponse{}
		for range container.DevicesIds {
			node := &api.DeviceSpec{HostPath: "/dev/null", ContainerPath: "/dev/null", Permissions: "rw"}
			granted.Devices = append(granted.Devices, node)
		}
		answer.ContainerResponses = append(answer.ContainerResponses, granted)
	}
	return answer, nil
}

// serving is one registration: a server under a name of its own.
type serving struct {
	server *grpc.Server
	plugin *plugin
}

func serve(dir string, devices []*api.Device) (*serving, error) {
	name := fmt.Sprintf("yardstick-%d.sock", time.Now().UnixNano())
	listener, err := net.Listen("unix", filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	s := &serving{server: grpc.NewServer(), plugin: &plugin{devices: devices, ended: make(chan struct{})}}
	api.RegisterDevicePluginServer(s.server, s.plugin)
	go func() { _ = s.server.Serve(listener) }()
	if err := register(dir, name); err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

func (s *serving) end() {
	close(s.plugin.ended)
	s.server.Stop()
}

func register(dir, endpoint string) error {
	target := "unix:" + filepath.Join(dir, "kubelet.sock")
	kubelet, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer kubelet.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	request := &api.RegisterRequest{Version: api.Version, Endpoint: endpoint, ResourceName: resource}
	_, err = api.NewRegistrationClient(kubelet).Register(ctx, request, grpc.WaitForReady(true))
	return err
}

func main() {
	dir := flag.String("dir", "", "the device-plugins directory")
	count := flag.Int("count", 10, "how many devices to offer")
	flag.Parse()
	var devices []*api.Device
	for n := range *count {
		devices = append(devices, &api.Device{ID: fmt.Sprintf("yardstick-%d", n), Health: api.Healthy})
	}
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		err = watcher.Add(*dir)
	}
	if err != nil {
		log.Fatal(err)
	}
	var current *serving
	again := func() {
		if current != nil {
			current.end()
		}
		if current, err = serve(*dir, devices); err != nil {
			log.Print(err)
		}
	}
	if _, err := os.Stat(filepath.Join(*dir, "kubelet.sock")); err == nil {
		again()
	}
	for event := range watcher.Events {
		if filepath.Base(event.Name) == "kubelet.sock" && event.Has(fsnotify.Create) {
			again()
		}
	}
}
