// A small DRA driver on upstream's own helper, which keeps every rule; with -mutant it has one defect.
//
// It has three devices that do nothing, a checkpoint and a CDI spec for each claim.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const name = "go.example.com"

var mutant = flag.String("mutant", "", "the defect")

func is(defect string) bool { return *mutant == defect }

// held is a device of a prepared claim.
type held struct {
	Request string `json:"request"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	Admin   bool   `json:"admin,omitempty"`
}

type driver struct {
	checkpoint string
	cdi        string
	claims     map[types.UID][]held
	known      map[types.UID]bool
	stop       context.CancelFunc
}

func devices() []resourceapi.Device {
	version := "1.2.3"
	if is("version-with-letter") {
		version = "v1.2"
	}
	var made []resourceapi.Device
	for number := range 3 {
		attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"firmware": {VersionValue: &version}}
		made = append(made, resourceapi.Device{Name: fmt.Sprintf("part-%d", number), Attributes: attributes})
	}
	return made
}

// load forgets the claims of a damaged file: what they hold is found again when they are prepared once more.
func (d *driver) load() error {
	content, err := os.ReadFile(d.checkpoint)
	if errors.Is(err, os.ErrNotExist) || is("forgets-claims") {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, &d.claims); err != nil {
		if is("dies-of-damage") {
			return err
		}
		log.Printf("the checkpoint is damaged: %v", err)
		d.claims = map[types.UID][]held{}
	}
	return nil
}

func (d *driver) save() error {
	content, err := json.Marshal(d.claims)
	if err != nil {
		return err
	}
	return replace(d.checkpoint, content)
}

func replace(path string, content []byte) error {
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (d *driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		prepared, err := d.prepare(claim)
		if err != nil && is("fails-whole-call") {
			return nil, err
		}
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: prepared, Err: err}
	}
	return results, nil
}

func (d *driver) prepare(claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	before, ok := d.claims[claim.UID]
	if !ok {
		for _, result := range claim.Status.Allocation.Devices.Results {
			if result.Driver != name {
				continue
			}
			one := held{result.Request, result.Pool, result.Device, result.AdminAccess != nil && *result.AdminAccess}
			if err := d.check(claim.UID, one); err != nil {
				return nil, err
			}
			before = append(before, one)
		}
		d.claims[claim.UID], d.known[claim.UID] = before, true
		if err := d.save(); err != nil {
			return nil, err
		}
	}
	if !ok || !is("trusts-checkpoint") {
		if err := d.writeSpec(claim.UID, before); err != nil {
			return nil, err
		}
	}
	var prepared []kubeletplugin.Device
	for _, one := range before {
		names := []string{name + "/claim=" + cdiName(claim.UID, one)}
		prepared = append(prepared, kubeletplugin.Device{
			Requests: []string{one.Request}, PoolName: one.Pool, DeviceName: one.Device, CDIDeviceIDs: names,
		})
	}
	return prepared, nil
}

func (d *driver) check(uid types.UID, wanted held) error {
	exists := is("prepares-any-device")
	for _, device := range devices() {
		exists = exists || device.Name == wanted.Device
	}
	if !exists {
		return fmt.Errorf("there is no device %s", wanted.Device)
	}
	for other, devices := range d.claims {
		for _, one := range devices {
			if other != uid && one.Device == wanted.Device && !one.Admin && !wanted.Admin && !is("gives-twice") {
				return fmt.Errorf("device %s is in use by the claim %s", one.Device, other)
			}
		}
	}
	return nil
}

func cdiName(uid types.UID, one held) string {
	return fmt.Sprintf("%s-%s", uid, one.Device)
}

func (d *driver) specPath(uid types.UID) string {
	return filepath.Join(d.cdi, fmt.Sprintf("%s-%s.json", name, uid))
}

func (d *driver) writeSpec(uid types.UID, devices []held) error {
	if is("writes-no-spec") {
		return nil
	}
	entries := []map[string]any{}
	for _, one := range devices {
		node := map[string]string{"path": "/dev/" + one.Device, "hostPath": "/dev/null"}
		edits := map[string]any{"deviceNodes": []any{node}}
		entries = append(entries, map[string]any{"name": cdiName(uid, one), "containerEdits": edits})
	}
	spec := map[string]any{"cdiVersion": "0.6.0", "kind": name + "/claim", "devices": entries}
	content, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return replace(d.specPath(uid), content)
}

func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		results[claim.UID] = d.unprepare(claim.UID)
	}
	return results, nil
}

func (d *driver) unprepare(uid types.UID) error {
	if is("refuses-unknown-end") && !d.known[uid] {
		return errors.New("this claim was never prepared")
	}
	if is("never-frees") {
		return nil
	}
	delete(d.claims, uid)
	if !is("leaves-spec") {
		if err := os.Remove(d.specPath(uid)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return d.save()
}

func (d *driver) HandleError(_ context.Context, err error, message string) {
	log.Printf("%s: %v", message, err)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		d.stop()
	}
}

func run() error {
	root := flag.String("root", "/var/lib/kubelet", "the kubelet's directory")
	flag.Parse()
	node, directory := os.Getenv("NODE_NAME"), filepath.Join(*root, "plugins", name)
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return err
	}
	syscall.Umask(0o077)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	d := &driver{
		checkpoint: filepath.Join(directory, "checkpoint.json"),
		cdi:        os.Getenv("CDI_ROOT"),
		claims:     map[types.UID][]held{},
		known:      map[types.UID]bool{},
		stop:       stop,
	}
	if err := d.load(); err != nil {
		return err
	}
	uid := types.UID(os.Getenv("POD_UID")) // in the names of the sockets: two instances run beside each other
	if is("without-uid") {
		uid = ""
	}
	helper, err := kubeletplugin.Start(ctx, d,
		kubeletplugin.RollingUpdate(uid),
		kubeletplugin.KubeClient(client),
		kubeletplugin.NodeName(node),
		kubeletplugin.DriverName(name),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(*root, "plugins_registry")),
		kubeletplugin.PluginDataDirectoryPath(directory),
	)
	if err != nil {
		return err
	}
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: devices()}}}
	resources := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{strings.ToLower(node): pool}}
	if err := helper.PublishResources(ctx, resources); err != nil {
		return err
	}
	<-ctx.Done()
	helper.Stop()
	return nil
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
