"""Strict schemas of the files in cluster/: the fields that they use; any other key is an error."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Name = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=47)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


# Kubernetes: pods and secrets


class Seccomp(Strict):
    type: Literal["RuntimeDefault"]


class PodSecurity(Strict):
    runAsNonRoot: Literal[True]
    runAsUser: Annotated[int, Field(gt=0)]
    fsGroup: int
    seccompProfile: Seccomp


class Capabilities(Strict):
    drop: list[Literal["ALL"]]


class ContainerSecurity(Strict):
    allowPrivilegeEscalation: Literal[False]
    capabilities: Capabilities


class Amounts(Strict):
    cpu: str
    memory: str
    gpu: int | None = Field(None, alias="nvidia.com/gpu")


class Resources(Strict):
    requests: Amounts
    limits: Amounts


class Reference(Strict):
    name: Name


class EnvironmentSource(Strict):
    secretRef: Reference


class VolumeMount(Strict):
    name: Name
    mountPath: Annotated[str, Field(pattern="^/")]
    readOnly: Literal[True]


class SecretVolume(Strict):
    secretName: Name
    defaultMode: Literal[0o440]  # raysum refuses keys that every user can read


class PodVolume(Strict):
    name: Name
    secret: SecretVolume


class Container(Strict):
    name: Name
    image: str
    envFrom: list[EnvironmentSource]
    resources: Resources
    securityContext: ContainerSecurity
    volumeMounts: list[VolumeMount] = []


class PodSpec(Strict):
    securityContext: PodSecurity
    terminationGracePeriodSeconds: int | None = None
    containers: list[Container]
    volumes: list[PodVolume] = []

    @model_validator(mode="after")
    def _check_mounts(self) -> "PodSpec":
        mounted = {mount.name for container in self.containers for mount in container.volumeMounts}
        assert mounted == {volume.name for volume in self.volumes}
        return self


class PodTemplate(Strict):
    spec: PodSpec


class Metadata(Strict):
    name: Name


class Secret(Strict):
    apiVersion: Literal["v1"]
    kind: Literal["Secret"]
    metadata: Metadata
    type: Literal["Opaque"]
    stringData: dict[str, str]


# KubeRay 1.7


class AuthOptions(Strict):
    mode: Literal["token"]
    secretName: Name


class HeadParameters(Strict):
    num_cpus: str = Field(alias="num-cpus")


class WorkerParameters(Strict):
    pass


class HeadGroup(Strict):
    rayStartParams: HeadParameters
    template: PodTemplate


class WorkerGroup(Strict):
    groupName: Name
    replicas: int
    minReplicas: int
    maxReplicas: int
    rayStartParams: WorkerParameters
    template: PodTemplate


class RayClusterSpec(Strict):
    rayVersion: str
    authOptions: AuthOptions
    headGroupSpec: HeadGroup
    workerGroupSpecs: list[WorkerGroup]


class RayJobSpec(Strict):
    entrypoint: str
    entrypointNumGpus: int | None = None
    runtimeEnvYAML: str
    backoffLimit: int
    activeDeadlineSeconds: int
    shutdownAfterJobFinishes: Literal[True]
    ttlSecondsAfterFinished: int
    rayClusterSpec: RayClusterSpec


class RayCronJobSpec(Strict):
    schedule: Annotated[str, Field(pattern=r"^(\S+ ){4}\S+$")]
    timeZone: str
    jobTemplate: RayJobSpec


class RayServiceSpec(Strict):
    serveConfigV2: str
    deploymentUnhealthySecondThreshold: int
    serviceUnhealthySecondThreshold: int
    excludeHeadPodFromServeSvc: bool
    rayClusterConfig: RayClusterSpec


class RayResource(Strict):
    apiVersion: Literal["ray.io/v1"]
    metadata: Metadata


class RayJob(RayResource):
    kind: Literal["RayJob"]
    spec: RayJobSpec


class RayCronJob(RayResource):
    kind: Literal["RayCronJob"]
    spec: RayCronJobSpec


class RayService(RayResource):
    kind: Literal["RayService"]
    spec: RayServiceSpec


KINDS: dict[str, type[Strict]] = {one.__name__: one for one in (RayJob, RayCronJob, RayService, Secret)}


# `ray up`: Ray's own schema allows any key of a provider, and any node configuration


class AwsSecurityGroup(Strict):
    GroupName: str
    IpPermissions: list[Any]  # botocore checks these


class AwsProvider(Strict):
    type: Literal["aws"]
    region: str
    availability_zone: str
    cache_stopped_nodes: bool
    security_group: AwsSecurityGroup


class GcpProvider(Strict):
    type: Literal["gcp"]
    region: str
    availability_zone: str
    project_id: str


class LocalProvider(Strict):
    type: Literal["local"]
    head_ip: str
    worker_ips: list[str]


PROVIDERS: dict[str, type[Strict]] = {"aws": AwsProvider, "gcp": GcpProvider, "local": LocalProvider}


class GcpDiskSource(Strict):
    diskSizeGb: int
    sourceImage: str


class GcpDisk(Strict):
    boot: bool
    autoDelete: bool
    type: Literal["PERSISTENT"]
    initializeParams: GcpDiskSource


class GcpItem(Strict):
    key: str
    value: str


class GcpMetadata(Strict):
    items: list[GcpItem]


class GcpAccount(Strict):
    email: str
    scopes: list[str]


class GcpScheduling(Strict):
    onHostMaintenance: Literal["TERMINATE"]


class GcpNode(Strict):
    machineType: str
    disks: list[GcpDisk]
    metadata: GcpMetadata | None = None
    serviceAccounts: list[GcpAccount] | None = None
    scheduling: list[GcpScheduling] | None = None


# Docker Compose, Prometheus and Grafana


class HealthCheck(Strict):
    test: list[str]
    interval: str
    timeout: str
    retries: int


class Condition(Strict):
    condition: Literal["service_healthy"]


class Dependencies(Strict):
    head: Condition


class Deploy(Strict):
    replicas: int


class ComposeService(Strict):
    image: str
    command: str | list[str] | None = None
    entrypoint: list[str] | None = None
    environment: dict[str, str | None] | None = None
    secrets: list[str] | None = None
    volumes: list[str]
    ports: list[Annotated[str, Field(pattern=r"^127\.0\.0\.1:\d+:\d+$")]] | None = None
    shm_size: str | None = None
    cap_drop: list[Literal["ALL"]]
    security_opt: list[Literal["no-new-privileges:true"]]
    healthcheck: HealthCheck | None = None
    depends_on: Dependencies | None = None
    deploy: Deploy | None = None
    profiles: list[str] | None = None
    restart: Literal["unless-stopped"] | None = None
    stop_grace_period: Annotated[str, Field(pattern=r"^\d+s$")] | None = None


class SecretFile(Strict):
    file: str


class Volume(Strict):
    pass


class Compose(Strict):
    ray: Any = Field(alias="x-ray")  # the services below include it
    services: dict[str, ComposeService]
    secrets: dict[str, SecretFile]
    volumes: dict[str, Volume]


class Scraping(Strict):
    scrape_interval: str
    scrape_timeout: str


class FileDiscovery(Strict):
    files: list[str]


class DnsDiscovery(Strict):
    names: list[str]
    type: Literal["A"]
    port: int
    refresh_interval: str


class ScrapeJob(Strict):
    job_name: str
    file_sd_configs: list[FileDiscovery] | None = None
    dns_sd_configs: list[DnsDiscovery] | None = None


class Prometheus(Strict):
    global_: Scraping = Field(alias="global")
    scrape_configs: list[ScrapeJob]


class DataSource(Strict):
    name: str
    uid: str
    type: Literal["prometheus"]
    access: Literal["proxy"]
    url: str
    isDefault: bool


class DataSources(Strict):
    apiVersion: Literal[1]
    datasources: list[DataSource]


class DashboardPath(Strict):
    path: str


class DashboardProvider(Strict):
    name: str
    type: Literal["file"]
    disableDeletion: bool
    options: DashboardPath


class Dashboards(Strict):
    apiVersion: Literal[1]
    providers: list[DashboardProvider]
