package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// kubelet is one life of a kubelet: from the moment it makes its socket until it goes away.
type kubelet struct {
	api.UnimplementedRegistrationServer
	settings settings
	created  time.Time
	server   *grpc.Server
	arrivals chan *plugin
	ctx      context.Context
	cancel   context.CancelFunc
}

// plugin is one registration of a plugin, connected back to.
type plugin struct {
	resource, endpoint string
	registered         time.Time
	registeredNs       int64
	options            map[string]bool
	connection         *grpc.ClientConn
	client             api.DevicePluginClient
	ctx                context.Context
	ended              chan error
}

type deviceList struct {
	took           time.Duration
	devices, bytes int
	healthy        []string
}

func startKubelet(s settings) (*kubelet, error) {
	if err := removeSockets(s.dir); err != nil {
		return nil, err
	}
	k := &kubelet{settings: s, server: grpc.NewServer(), arrivals: make(chan *plugin, 64), created: time.Now()}
	listener, err := net.Listen("unix", filepath.Join(s.dir, "kubelet.sock"))
	if err != nil {
		return nil, err
	}
	// A kubelet that ends leaves its socket behind; the next one removes it.
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	k.ctx, k.cancel = context.WithCancel(context.Background())
	api.RegisterRegistrationServer(k.server, k)
	go func() { _ = k.server.Serve(listener) }()
	return k, nil
}

// removeSockets does what a kubelet does when it starts: every socket goes, those of running plugins too.
func removeSockets(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if info, err := os.Stat(path); err != nil || info.Mode()&os.ModeSocket == 0 {
			continue
		}
		// The plugin may remove its own at the same moment.
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}

func (k *kubelet) stop() {
	k.cancel()
	k.server.Stop()
	for {
		select {
		case p := <-k.arrivals:
			_ = p.connection.Close()
		default:
			return
		}
	}
}

// Register connects back and asks for the options before it answers, as the kubelet does.
func (k *kubelet) Register(ctx context.Context, request *api.RegisterRequest) (*api.Empty, error) {
	received, receivedNs := time.Now(), monotonic()
	if request.Version != api.Version {
		return nil, fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q",
			request.Version, api.SupportedVersions)
	}
	if k.settings.resource != "" && request.ResourceName != k.settings.resource {
		return &api.Empty{}, nil
	}
	p, err := k.connect(ctx, request)
	if err != nil {
		return nil, err
	}
	p.registered, p.registeredNs = received, receivedNs
	select {
	case k.arrivals <- p:
	default:
		_ = p.connection.Close()
	}
	return &api.Empty{}, nil
}

func (k *kubelet) connect(ctx context.Context, request *api.RegisterRequest) (*plugin, error) {
	path := filepath.Join(k.settings.dir, request.Endpoint)
	connection, err := grpc.NewClient("unix:"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return nil, fmt.Errorf("failed to dial device plugin: %w", err)
	}
	client := api.NewDevicePluginClient(connection)
	limited, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	options, err := client.GetDevicePluginOptions(limited, &api.Empty{}, grpc.WaitForReady(true))
	if err != nil {
		_ = connection.Close()
		return nil, fmt.Errorf("failed to get device plugin options: %w", err)
	}
	return &plugin{
		resource: request.ResourceName, endpoint: request.Endpoint, connection: connection, client: client,
		ctx: k.ctx, ended: make(chan error, 1),
		options: map[string]bool{
			"pre_start_required":                 options.PreStartRequired,
			"get_preferred_allocation_available": options.GetPreferredAllocationAvailable,
		},
	}, nil
}

func (k *kubelet) await() (*plugin, error) {
	select {
	case p := <-k.arrivals:
		return p, nil
	case <-time.After(k.settings.timeout):
		return nil, fmt.Errorf("no plugin registered within %v", k.settings.timeout)
	}
}

// list opens ListAndWatch and waits for the first list; a goroutine reads the stream from then on.
func (p *plugin) list(timeout time.Duration) (*deviceList, error) {
	ctx, cancel := context.WithCancel(p.ctx)
	timer := time.AfterFunc(timeout, cancel)
	began := time.Now()
	stream, err := p.client.ListAndWatch(ctx, &api.Empty{})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("ListAndWatch: %w", err)
	}
	first, err := stream.Recv()
	took := time.Since(began)
	if !timer.Stop() || err != nil {
		cancel()
		return nil, fmt.Errorf("ListAndWatch, first list (limit %v): %w", timeout, err)
	}
	go p.watch(stream, cancel)
	return &deviceList{
		took: took, devices: len(first.Devices), bytes: proto.Size(first), healthy: healthy(first.Devices),
	}, nil
}

func (p *plugin) watch(stream grpc.ServerStreamingClient[api.ListAndWatchResponse], cancel context.CancelFunc) {
	defer cancel()
	for {
		if _, err := stream.Recv(); err != nil {
			p.ended <- fmt.Errorf("the plugin ended its ListAndWatch stream: %w", err)
			return
		}
	}
}

func healthy(devices []*api.Device) []string {
	var ids []string
	for _, device := range devices {
		if device.Health == api.Healthy {
			ids = append(ids, device.ID)
		}
	}
	return ids
}

// monotonic is the machine's clock that the harness reads too, so that times of two processes can be subtracted.
func monotonic() int64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return now.Nano()
}
