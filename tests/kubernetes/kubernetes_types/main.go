// Prints what Kubernetes' own Go types say of the API objects that the embedded cluster serves: the fields of every
// message, their numbers and types, when they are left out, and how lists of them are merged.
//
//	kubernetes_types fields CLIENT_GO_SCHEMA   the table of src/plugwright/apiserver
//	kubernetes_types objects SEED COUNT        objects filled at random: a line of JSON, then one of base64, for each
package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/yaml"
)

type message interface{ Marshal() ([]byte, error) }

var roots = []message{
	&admissionregistrationv1.ValidatingAdmissionPolicy{}, &admissionregistrationv1.ValidatingAdmissionPolicyList{},
	&admissionregistrationv1.ValidatingAdmissionPolicyBinding{},
	&admissionregistrationv1.ValidatingAdmissionPolicyBindingList{},
	&appsv1.DaemonSet{}, &appsv1.DaemonSetList{}, &appsv1.Deployment{}, &appsv1.DeploymentList{},
	&appsv1.ReplicaSet{}, &appsv1.ReplicaSetList{}, &autoscalingv1.Scale{},
	&authenticationv1.SelfSubjectReview{}, &authorizationv1.SelfSubjectAccessReview{},
	&authorizationv1.SelfSubjectRulesReview{},
	&batchv1.CronJob{}, &batchv1.CronJobList{}, &batchv1.Job{}, &batchv1.JobList{},
	&coordinationv1.Lease{}, &coordinationv1.LeaseList{},
	&corev1.Binding{}, &corev1.ConfigMap{}, &corev1.ConfigMapList{}, &corev1.Event{}, &corev1.EventList{},
	&corev1.Namespace{}, &corev1.NamespaceList{}, &corev1.Node{}, &corev1.NodeList{}, &corev1.Pod{}, &corev1.PodList{},
	&corev1.Secret{}, &corev1.SecretList{}, &corev1.Service{}, &corev1.ServiceAccount{}, &corev1.ServiceAccountList{},
	&corev1.ServiceList{},
	&eventsv1.Event{}, &eventsv1.EventList{},
	&metav1.DeleteOptions{}, &metav1.PartialObjectMetadata{}, &metav1.PartialObjectMetadataList{}, &metav1.Status{},
	&networkingv1.NetworkPolicy{}, &networkingv1.NetworkPolicyList{}, &policyv1.Eviction{},
	&rbacv1.ClusterRole{}, &rbacv1.ClusterRoleBinding{}, &rbacv1.ClusterRoleBindingList{}, &rbacv1.ClusterRoleList{},
	&rbacv1.Role{}, &rbacv1.RoleBinding{}, &rbacv1.RoleBindingList{}, &rbacv1.RoleList{},
	&resourcev1.DeviceClass{}, &resourcev1.DeviceClassList{}, &resourcev1.DeviceTaintRule{},
	&resourcev1.DeviceTaintRuleList{}, &resourcev1.ResourceClaim{},
	&resourcev1.ResourceClaimList{}, &resourcev1.ResourceClaimTemplate{}, &resourcev1.ResourceClaimTemplateList{},
	&resourcev1.ResourceSlice{}, &resourcev1.ResourceSliceList{},
	&schedulingv1.PriorityClass{}, &schedulingv1.PriorityClassList{},
}

// What JSON writes in another form than as the members of an object.
var forms = map[reflect.Type]string{
	reflect.TypeFor[metav1.FieldsV1]():  "RawJSON",
	reflect.TypeFor[metav1.MicroTime](): "MicroTime", reflect.TypeFor[metav1.Time](): "Time",
	reflect.TypeFor[intstr.IntOrString](): "IntOrString", reflect.TypeFor[resource.Quantity](): "Quantity",
	reflect.TypeFor[runtime.RawExtension](): "RawJSON", reflect.TypeFor[authenticationv1.ExtraValue](): "Strings",
}

func main() {
	if os.Args[1] == "objects" {
		printObjects(os.Args[2], os.Args[3])
		return
	}
	merges := readMerges(os.Args[2])
	printed := map[string][]string{}
	for _, root := range roots {
		collect(reflect.TypeOf(root).Elem(), printed, merges, merge{})
	}
	names := make([]string, 0, len(printed))
	for name := range printed {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		fmt.Println(name)
		for _, line := range printed[name] {
			fmt.Println(" " + line)
		}
	}
}

func nameOf(t reflect.Type) string {
	path := strings.Split(t.PkgPath(), "/")
	return path[len(path)-2] + "." + t.Name()
}

// A type whose members JSON writes into the object around it is merged as that object is.
func collect(t reflect.Type, printed map[string][]string, merges map[string]merge, around merge) {
	name := nameOf(t)
	if _, seen := printed[name]; seen {
		return
	}
	printed[name] = nil
	type numbered struct {
		number int
		line   string
	}
	var fields []numbered
	for i := range t.NumField() {
		field := t.Field(i)
		tag := strings.Split(field.Tag.Get("protobuf"), ",")
		if len(tag) < 2 {
			continue
		}
		number, err := strconv.Atoi(tag[1])
		if err != nil {
			panic(err)
		}
		of := merges[openAPIName(t)]
		if around.fields != nil {
			of = around
		}
		line, inner := describe(field, of)
		fields = append(fields, numbered{number, fmt.Sprintf("%d %s", number, line)})
		if inner != nil && strings.HasPrefix(line, "- ") {
			collect(inner, printed, merges, of)
		} else if inner != nil {
			collect(inner, printed, merges, merge{})
		}
	}
	sort.Slice(fields, func(i, j int) bool { return fields[i].number < fields[j].number })
	lines := []string{}
	for _, field := range fields {
		lines = append(lines, field.line)
	}
	printed[name] = lines
}

func describe(field reflect.StructField, of merge) (string, reflect.Type) {
	parts := strings.Split(field.Tag.Get("json"), ",")
	name, options := parts[0], parts[1:]
	if name == "" && field.Anonymous {
		name = "-"
	}
	typeName, inner := typeOf(field.Type)
	words := []string{name, typeName}
	if field.Type.Kind() == reflect.Pointer {
		words = append(words, "pointer")
	} else if !has(options, "omitempty") && !has(options, "omitzero") {
		words = append(words, "always")
	} else if has(options, "omitzero") {
		words = append(words, "omitzero")
	}
	if strategy := field.Tag.Get("patchStrategy"); strategy != "" {
		word := "patch=" + strategy
		if key := field.Tag.Get("patchMergeKey"); key != "" {
			word += ":" + key
		}
		words = append(words, word)
	}
	if word := of.fields[name]; word != "" {
		words = append(words, word)
	}
	return strings.Join(words, " "), inner
}

func typeOf(t reflect.Type) (string, reflect.Type) {
	if form := forms[t]; form != "" {
		return form, nil
	}
	switch t.Kind() {
	case reflect.Pointer:
		return typeOf(t.Elem())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes", nil
		}
		name, inner := typeOf(t.Elem())
		return "[]" + name, inner
	case reflect.Map:
		name, inner := typeOf(t.Elem())
		return "{}" + name, inner
	case reflect.Struct:
		return nameOf(t), t
	case reflect.String, reflect.Bool, reflect.Int32, reflect.Int64:
		return t.Kind().String(), nil
	}
	panic("unexpected type " + t.String())
}

func has(words []string, word string) bool {
	for _, one := range words {
		if one == word {
			return true
		}
	}
	return false
}

// How server-side apply merges: lists by keys or as sets, and what it takes as a whole.
type merge struct{ fields map[string]string }

type schemaType struct {
	NamedType string
	List      *struct {
		ElementRelationship string
		Keys                []string
	}
	Map *struct {
		ElementRelationship string
		Fields              []struct {
			Name string
			Type schemaType
		}
	}
}

func readMerges(path string) map[string]merge {
	source, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	_, rest, _ := strings.Cut(string(source), "typed.YAMLObject(`")
	text, _, _ := strings.Cut(rest, "`)")
	var schema struct {
		Types []struct {
			Name string
			schemaType
		}
	}
	if err := yaml.Unmarshal([]byte(text), &schema); err != nil {
		panic(err)
	}
	atomic := map[string]bool{}
	for _, one := range schema.Types {
		if one.Map != nil && one.Map.ElementRelationship == "atomic" {
			atomic[one.Name] = true
		}
	}
	merges := map[string]merge{}
	for _, one := range schema.Types {
		words := map[string]string{}
		if one.Map != nil {
			for _, field := range one.Map.Fields {
				words[field.Name] = relationship(field.Type, atomic)
			}
		}
		merges[one.Name] = merge{words}
	}
	return merges
}

func relationship(t schemaType, atomic map[string]bool) string {
	switch {
	case t.List != nil && t.List.ElementRelationship == "associative" && len(t.List.Keys) > 0:
		return "keys=" + strings.Join(t.List.Keys, ",")
	case t.List != nil && t.List.ElementRelationship == "associative":
		return "set"
	case t.Map != nil && t.Map.ElementRelationship == "atomic", atomic[t.NamedType]:
		return "atomic"
	}
	return ""
}

func openAPIName(t reflect.Type) string {
	path := t.PkgPath()
	path = strings.ReplaceAll(strings.TrimPrefix(path, "k8s.io/"), "/", ".")
	return "io.k8s." + path + "." + t.Name()
}

func printObjects(seed, count string) {
	number, _ := strconv.ParseInt(seed, 10, 64)
	objects, _ := strconv.Atoi(count)
	filler := randfill.NewWithSeed(number).NilChance(0.4).NumElements(1, 2).MaxDepth(24).Funcs(
		func(t *metav1.Time, c randfill.Continue) { *t = metav1.Unix(c.Int63n(2_000_000_000), 0) },
		func(t *metav1.MicroTime, c randfill.Continue) {
			*t = metav1.NewMicroTime(time.UnixMicro(c.Int63n(2_000_000_000_000_000)))
		},
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewQuantity(c.Int63n(1<<40), resource.BinarySI)
		},
		func(r *runtime.RawExtension, c randfill.Continue) {
			r.Raw = []byte(`{"a":[1,null,"x"],"b":{"c":true}}`)
		},
		func(f *metav1.FieldsV1, c randfill.Continue) { f.Raw = []byte(`{"f:metadata":{"f:labels":{".":{}}}}`) },
		func(i *intstr.IntOrString, c randfill.Continue) {
			*i = []intstr.IntOrString{intstr.FromInt32(c.Int31()), intstr.FromString("http")}[c.Intn(2)]
		},
		func(s *string, c randfill.Continue) { *s = []string{"", "a", "grün", "x/y.z-0"}[c.Intn(4)] },
		func(i *int64, c randfill.Continue) { *i = []int64{0, 1, -1, 1 << 40, rand.Int63()}[c.Intn(5)] },
		func(b *[]byte, c randfill.Continue) { *b = [][]byte{{}, []byte("\x00\xff"), []byte("text")}[c.Intn(3)] },
		func(e *authenticationv1.ExtraValue, c randfill.Continue) { *e = authenticationv1.ExtraValue{"a", "b"} },
		func(m *metav1.TypeMeta, c randfill.Continue) {},
	)
	for index := range objects {
		for _, root := range roots {
			if index == 0 {
				printObject(reflect.New(reflect.TypeOf(root).Elem()).Interface().(message))
			}
			object := reflect.New(reflect.TypeOf(root).Elem()).Interface()
			filler.Fill(object)
			printObject(object.(message))
		}
	}
}

func printObject(object message) {
	document, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	encoded, err := object.Marshal()
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s %s\n%s\n", nameOf(reflect.TypeOf(object).Elem()), document, base64.StdEncoding.EncodeToString(encoded))
}
