// SPDX-License-Identifier: MIT
/* Checkpoints of containers by their engines; see engines.h. */
#include "edges/containers/engines.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/paths.h"
#include "criu/criu.h"
#include "process/reap.h"
#include "edges/containers/archive.h"
#include "wire/wire.h"

enum { WORDS_MAX = 24, LOG_BYTES_MAX = 64 << 20, REASON_BYTES = 500 };

#define SET_UP "docs/containers.md says how a node is set up"

const char *service_engine_name(const struct service_container *c)
{
	static const char *const names[] = {
		[ENGINE_RUNTIME] = NULL,
		[ENGINE_PODMAN] = "podman",
		[ENGINE_CONTAINERD] = "containerd",
		[ENGINE_DOCKER] = "docker",
		[ENGINE_KUBELET] = "the kubelet",
	};

	return names[c->engine] ? names[c->engine] : c->runtime;
}

/* ---- a place for what is under way ---- */

/*
 * A directory that only root can access, on the disk of the input or output, as it needs as much space:
 * bin/criu        the CRIU for the engine
 * criu.conf       the configuration of that CRIU
 * images/, work/  CRIU's images, and its logs
 * log             the engine's messages
 * archive         the output of service_checkpoint_container()
 */
struct workspace {
	char dir[PATH_MAX];
};

static void workspace_fini(struct workspace *w)
{
	if (*w->dir)
		remove_tree(AT_FDCWD, w->dir);
	*w->dir = '\0';
}
DEFINE_AUTO_FINI(struct workspace, workspace_fini)

/* Owned; NULL if out of memory. */
static char *place(const struct workspace *w, const char *name)
{
	return path_format("%s/%s", w->dir, name);
}

static int make_dirs(const struct workspace *w)
{
	static const char *const names[] = { "bin", "images", "work" };

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		auto_free char *path = place(w, names[i]);

		if (!path || mkdir(path, 0700) < 0)
			return -errno;
	}
	return 0;
}

/* Both are the same as on a node that was set up. */
static int give_criu(const struct workspace *w, struct brumate_error *err)
{
	struct criu_program criu;
	auto_free char *plugin = path_find_helper("container-plugin");
	auto_free char *link = place(w, "bin/criu"), *conf = place(w, "criu.conf");
	auto_free char *text = plugin ? path_format("libdir %s\n", plugin) : NULL;
	int r = criu_find(&criu, err);

	if (r < 0)
		return r;
	if (!plugin)
		return brumate_fail(err, ENOENT, "brumate_plugin.so is not installed");
	if (!link || !conf || !text || symlink(criu.path, link) < 0)
		return brumate_fail(err, errno, "%s: %m", w->dir);
	r = file_swap(AT_FDCWD, conf, text, strlen(text), 0600);
	return r < 0 ? brumate_fail(err, -r, "%s: %s", conf, strerror(-r)) : 0;
}

static int workspace_make(struct workspace *ret, const char *beside, struct brumate_error *err)
{
	const char *slash = strrchr(beside, '/');
	struct workspace w;
	int len = slash ? (int)(slash - beside) + 1 : 0;

	snprintf(w.dir, sizeof(w.dir), "%.*s.brumate-XXXXXX", len, beside);
	if (!mkdtemp(w.dir)) {
		*w.dir = '\0';
		return brumate_fail(err, errno, "%s: %m", beside);
	}
	int r = make_dirs(&w);
	r = r < 0 ? brumate_fail(err, -r, "%s: %s", w.dir, strerror(-r)) : give_criu(&w, err);
	if (r < 0)
		workspace_fini(&w);
	else
		*ret = w;
	return r;
}

/* ---- the engine's command ---- */

struct words {
	const char *list[WORDS_MAX];
	size_t n;
};

static void add_word(struct words *w, const char *word)
{
	if (w->n + 1 < WORDS_MAX)
		w->list[w->n++] = word;
}

/* Our environment, with the engine's CRIU in the PATH. Owned, as are its last two entries. */
static char **make_environment(const struct workspace *w)
{
	const char *path = getenv("PATH");
	size_t n = 0, kept = 0;

	while (environ[n])
		n++;
	char **env = calloc(n + 3, sizeof(*env));
	for (size_t i = 0; env && i < n; i++)
		if (strncmp(environ[i], "PATH=", 5) && strncmp(environ[i], "CRIU_CONFIG_FILE=", 17))
			env[kept++] = environ[i];
	if (!env)
		return NULL;
	env[kept] = path_format("PATH=%s/bin:%s", w->dir, path ? path : "/usr/sbin:/usr/bin");
	env[kept + 1] = path_format("CRIU_CONFIG_FILE=%s/criu.conf", w->dir);
	return env;
}

static void free_environment(char **env)
{
	size_t n = 0;

	while (env && env[n])
		n++;
	if (n >= 2) {
		free(env[n - 1]);
		free(env[n - 2]);
	}
	free(env);
}

/* A restored container gets all its descriptors from its image: those that it inherits from us would stay open. */
static int spawn(pid_t *ret, const struct words *words, char **env, const char *out,
		 const char *log)
{
	auto_close int out_fd = open(out ? out : "/dev/null", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	auto_close int log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

	if (out_fd < 0 || log_fd < 0)
		return -errno;
	return reap_spawn(ret, words->list[0], (char **)words->list, env, out_fd, log_fd);
}

/* Runs the engine until it ends. Returns its exit status, or -errno. Its stdout goes to @out, if that is not NULL,
 * its messages to @log. */
static int run_engine(const struct workspace *w, const struct words *words, const char *out,
		      const char *log)
{
	char **env = make_environment(w);
	pid_t pid;
	int status, r = env ? spawn(&pid, words, env, out, log) : -ENOMEM;

	free_environment(env);
	if (r == 0)
		r = reap_wait(pid, &status);
	if (r < 0)
		return r;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- why it failed ---- */

/* The end of the last line of @text that contains @what, from @what on. */
static const char *last_with(const char *text, const char *what)
{
	const char *found = NULL;

	for (const char *at = text; (at = strstr(at, what)); at++)
		found = at;
	return found;
}

static bool take_line(char ret[static REASON_BYTES], const char *line)
{
	if (!line || !*line || *line == '\n')
		return false;
	snprintf(ret, REASON_BYTES, "%.*s", (int)strcspn(line, "\n"), line);
	for (char *p = ret; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			*p = '?';
	return true;
}

/* Prefers the error of our plugin to CRIU's last error, and that to the engine's. */
static void find_reason(char ret[static REASON_BYTES], const char *criu_log, const char *engine_log)
{
	auto_free char *criu = NULL, *engine = NULL;

	if (criu_log)
		file_read(AT_FDCWD, criu_log, LOG_BYTES_MAX, &criu, NULL);
	file_read(AT_FDCWD, engine_log, LOG_BYTES_MAX, &engine, NULL);
	if (criu && take_line(ret, last_with(criu, "brumate: ")))
		return;
	if (criu && take_line(ret, last_with(criu, "Error (")))
		return;
	const char *words = engine ? last_with(engine, "msg=") : NULL;
	if (!take_line(ret, words ? words + strlen("msg=") : engine))
		snprintf(ret, REASON_BYTES, "it gives no reason");
}

static int fail_engine(const char *engine, int r, const char *what, const char *reason,
		       struct brumate_error *err)
{
	if (r == -ENOENT) {
		brumate_fail(err, ENOENT, "%s is not in the PATH", engine);
		return -ENOENT;
	}
	if (r < 0)
		return brumate_fail(err, -r, "%s: %s", engine, strerror(-r));
	brumate_fail(err, EIO, "%s cannot %s: %s", engine, what, reason);
	brumate_hint(err, SET_UP);
	return -EIO;
}

/* ---- checkpoint ---- */

/* @words ends with the request; @criu_log: CRIU's log. */
static int run_checkpoint(const struct workspace *w, const struct words *words,
			  const char *criu_log, struct brumate_error *err)
{
	auto_free char *log = place(w, "log");
	char reason[REASON_BYTES];
	int r = log ? run_engine(w, words, NULL, log) : -ENOMEM;

	if (r == 0)
		return 0;
	if (r > 0)
		find_reason(reason, criu_log, log);
	return fail_engine(words->list[0], r, "checkpoint it", reason, err);
}

static int pack_about(char **ret, const struct service_container *c)
{
	auto_json json_t *o =
		json_pack("{s:i,s:s,s:s,s:s,s:s}", "version", 1, "runtime", c->runtime, "state",
			  c->state, "bundle", c->bundle, "container", c->id);

	*ret = o ? json_dumps(o, JSON_INDENT(1)) : NULL;
	return *ret ? 0 : -ENOMEM;
}

/* In the format of podman and CRI-O, for checkpointctl. */
static int pack_config(char **ret, const struct service_container *c)
{
	char stamp[CLOCK_STAMP_BYTES];

	clock_stamp(stamp);
	auto_json json_t *o = json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:b}", "id", c->id, "name",
					*c->name ? c->name : c->id, "rootfsImage", "",
					"rootfsImageRef", "", "rootfsImageName", "", "runtime",
					c->runtime, "checkpointedTime", stamp, "restored", 0);

	*ret = o ? json_dumps(o, JSON_INDENT(1)) : NULL;
	return *ret ? 0 : -ENOMEM;
}

static int pack_archive(const struct workspace *w, const struct service_container *c,
			struct brumate_error *err)
{
	auto_free char *path = place(w, "archive"), *images = place(w, "images");
	auto_free char *spec_path = path_format("%s/config.json", c->bundle);
	auto_free char *stats_path = place(w, "work/stats-dump");
	auto_free char *about = NULL, *config = NULL, *spec = NULL, *stats = NULL;
	size_t spec_bytes = 0, stats_bytes = 0;

	if (!path || !images || !spec_path || !stats_path || pack_about(&about, c) < 0 ||
	    pack_config(&config, c) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	int r = file_read(AT_FDCWD, spec_path, LOG_BYTES_MAX, &spec, &spec_bytes);
	if (r < 0)
		return brumate_fail(err, -r, "%s: %s", spec_path, strerror(-r));
	file_read(AT_FDCWD, stats_path, LOG_BYTES_MAX, &stats, &stats_bytes);
	const struct archive_text texts[] = {
		{ "brumate.json", about, strlen(about) },
		{ "config.dump", config, strlen(config) },
		{ "spec.dump", spec, spec_bytes },
		{ "stats-dump", stats, stats_bytes },
	};
	return archive_write(path, texts, stats ? 4 : 3, images, err);
}

/* runc and crun have the same arguments for it. */
static int checkpoint_by_runtime(const struct workspace *w, const struct service_container *c,
				 bool leave_running, struct brumate_error *err)
{
	auto_free char *images = place(w, "images"), *work = place(w, "work"),
		       *criu_log = place(w, "work/dump.log");
	struct words words = { .n = 0 };

	if (!images || !work || !criu_log)
		return brumate_fail(err, ENOMEM, "%m");
	add_word(&words, c->runtime);
	add_word(&words, "--root");
	add_word(&words, c->state);
	add_word(&words, "checkpoint");
	add_word(&words, "--image-path");
	add_word(&words, images);
	add_word(&words, "--work-path");
	add_word(&words, work);
	if (leave_running)
		add_word(&words, "--leave-running");
	add_word(&words, c->id);
	return run_checkpoint(w, &words, criu_log, err);
}

static int checkpoint_by_podman(const struct workspace *w, const struct service_container *c,
				bool leave_running, struct brumate_error *err)
{
	auto_free char *archive = place(w, "archive");
	auto_free char *criu_log = path_format("%s/dump.log", c->bundle);
	struct words words = { .n = 0 };

	if (!archive || !criu_log)
		return brumate_fail(err, ENOMEM, "%m");
	add_word(&words, "podman");
	add_word(&words, "container");
	add_word(&words, "checkpoint");
	add_word(&words, "--export");
	add_word(&words, archive);
	add_word(&words, "--compress");
	add_word(&words, "none");
	if (leave_running)
		add_word(&words, "--leave-running");
	add_word(&words, c->id);
	int r = run_checkpoint(w, &words, criu_log, err);
	/* It was created with the umask's mode, and contains all memory of the container. */
	if (r == 0 && chmod(archive, 0600) < 0)
		r = brumate_fail(err, errno, "%s: %m", archive);
	return r;
}

/* podman's name of a container's runtime, which may be a path, and its image: restoring an image needs both. */
struct podman_words {
	char text[PATH_MAX + 512]; /* the pointers below point into it */
	const char *runtime, *image;
};

static void ask_podman(struct podman_words *ret, const struct workspace *w,
		       const struct service_container *c)
{
	auto_free char *out = place(w, "inspect"), *text = NULL;
	struct words words = { .n = 0 };

	ret->runtime = c->runtime;
	ret->image = NULL;
	add_word(&words, "podman");
	add_word(&words, "inspect");
	add_word(&words, "--format");
	add_word(&words, "{{.OCIRuntime}}\n{{.ImageName}}");
	add_word(&words, c->id);
	if (!out || run_engine(w, &words, out, "/dev/null") != 0 ||
	    file_read(AT_FDCWD, out, sizeof(ret->text) - 1, &text, NULL) < 0)
		return;
	snprintf(ret->text, sizeof(ret->text), "%s", text);
	char *image = ret->text;
	const char *runtime = strsep(&image, "\n");
	const char *name = strsep(&image, "\n");
	ret->runtime = *runtime ? runtime : c->runtime;
	ret->image = name && *name ? name : NULL;
}

static int refuse_engine(const struct service_container *c, struct brumate_error *err)
{
	const char *name = *c->name ? c->name : c->id;

	switch (c->engine) {
	case ENGINE_KUBELET:
		brumate_fail(err, EOPNOTSUPP, "container %s is of a pod", name);
		brumate_hint(err, "the kubelet checkpoints it: brumate k8s checkpoint POD");
		return -EOPNOTSUPP;
	case ENGINE_CONTAINERD:
		brumate_fail(err, EOPNOTSUPP,
			     "container %s is containerd's, which keeps its "
			     "checkpoints itself",
			     name);
		brumate_hint(err, "ctr --namespace %s containers checkpoint --task %s IMAGE",
			     c->namespace, c->id);
		return -EOPNOTSUPP;
	case ENGINE_DOCKER:
		brumate_fail(err, EOPNOTSUPP,
			     "container %s is docker's, which keeps its "
			     "checkpoints itself",
			     name);
		brumate_hint(err, "docker checkpoint create %s CHECKPOINT", name);
		return -EOPNOTSUPP;
	default:
		return 0;
	}
}

static int check_root(struct brumate_error *err)
{
	if (geteuid() == 0)
		return 0;
	return brumate_fail(err, EPERM, "containers are checkpointed and restored by root");
}

static int check_output(const struct service_container_checkpoint *how, struct brumate_error *err)
{
	struct stat st;

	if (how->oci)
		return oci_image_check(how->oci, err);
	if (lstat(how->output, &st) == 0)
		return brumate_fail(err, EEXIST, "%s: is there already", how->output);
	return errno == ENOENT ? 0 : brumate_fail(err, errno, "%s: %m", how->output);
}

/* Moves the archive to its destination. It may be all that is left of the container: if it cannot be turned into an
 * image, it stays an archive. */
static int hand_out(const struct workspace *w, const struct service_container *c,
		    const struct service_container_checkpoint *how, struct brumate_error *err)
{
	const char *name = *c->name ? c->name : c->id;
	struct podman_words podman = { .runtime = NULL };
	struct oci_about about = { .container = name, .engine = service_engine_name(c) };
	auto_free char *archive = place(w, "archive");
	auto_free char *kept = how->oci ? path_format("%s.tar", how->oci) : strdup(how->output);

	if (!archive || !kept)
		return brumate_fail(err, ENOMEM, "%m");
	if (how->oci && c->engine == ENGINE_PODMAN)
		ask_podman(&podman, w, c);
	about.runtime = podman.runtime;
	about.image = podman.image;
	int r = how->oci ? oci_image_write(how->oci, archive, &about, err) : 0;
	if (how->oci && r == 0)
		return 0;
	int moved = rename_new(AT_FDCWD, archive, AT_FDCWD, kept);
	if (moved < 0)
		return brumate_fail(err, -moved, "%s: %m", kept);
	if (r < 0)
		brumate_hint(err, "the checkpoint is there, as an archive: %s", kept);
	return r;
}

/* Keeps CRIU's images if they cannot be packed, as they may be all that is left of the container. */
static void keep_images(const struct workspace *w, const struct service_container_checkpoint *how,
			struct brumate_error *err)
{
	auto_free char *images = place(w, "images");
	auto_free char *kept = path_format("%s.images", how->oci ? how->oci : how->output);

	if (images && kept && rename_new(AT_FDCWD, images, AT_FDCWD, kept) == 0)
		brumate_hint(err, "CRIU's images of the container are there: %s", kept);
}

int service_checkpoint_container(const struct service_container *c,
				 const struct service_container_checkpoint *how,
				 struct brumate_error *err)
{
	auto_(workspace_fini) struct workspace w = { .dir = "" };
	int r = check_root(err);

	if (r == 0)
		r = refuse_engine(c, err);
	if (r == 0)
		r = check_output(how, err);
	if (r == 0)
		r = workspace_make(&w, how->oci ? how->oci : how->output, err);
	if (r == 0)
		r = c->engine == ENGINE_PODMAN
			    ? checkpoint_by_podman(&w, c, how->leave_running, err)
			    : checkpoint_by_runtime(&w, c, how->leave_running, err);
	if (r == 0 && c->engine == ENGINE_RUNTIME && (r = pack_archive(&w, c, err)) < 0)
		keep_images(&w, how, err);
	return r < 0 ? r : hand_out(&w, c, how, err);
}

/* ---- restore ---- */

/* Gets a word of brumate.json, which is untrusted: it must not be an option. */
static int get_word(const char **ret, json_t *about, const char *key, const char *path,
		    struct brumate_error *err)
{
	*ret = text_of(about, key);
	if (**ret && **ret != '-')
		return 0;
	return brumate_fail(err, EBADMSG, "%s: damaged: it has no %s", path, key);
}

static int restore_by_runtime(json_t *about, const char *path, const char *name, const char *bundle,
			      const char **ret_engine, struct brumate_error *err)
{
	auto_(workspace_fini) struct workspace w = { .dir = "" };
	const char *state = NULL, *recorded = NULL, *runtime = text_of(about, "runtime");
	struct words words = { .n = 0 };
	char reason[REASON_BYTES];
	int r = get_word(&state, about, "state", path, err);

	if (r == 0)
		r = get_word(&recorded, about, "bundle", path, err);
	if (r < 0)
		return r;
	*ret_engine = !strcmp(runtime, "crun") ? "crun" : "runc";
	bundle = bundle ? bundle : recorded;
	if (access(bundle, F_OK) < 0) {
		r = brumate_fail(err, errno, "the bundle of the container, %s: %m", bundle);
		brumate_hint(err, "--bundle names where it is here");
		return r;
	}
	r = workspace_make(&w, path, err);
	if (r < 0)
		return r;
	auto_free char *images = place(&w, "images"), *work = place(&w, "work"),
		       *log = place(&w, "log"), *criu_log = place(&w, "work/restore.log");
	if (!images || !work || !log || !criu_log)
		return brumate_fail(err, ENOMEM, "%m");
	r = archive_unpack(path, images, err);
	if (r < 0)
		return r;
	add_word(&words, *ret_engine);
	add_word(&words, "--root");
	add_word(&words, state);
	add_word(&words, "--log");
	add_word(&words, log);
	add_word(&words, "restore");
	add_word(&words, "--detach");
	add_word(&words, "--bundle");
	add_word(&words, bundle);
	add_word(&words, "--image-path");
	add_word(&words, images);
	add_word(&words, "--work-path");
	add_word(&words, work);
	add_word(&words, name);
	r = run_engine(&w, &words, NULL, "/dev/null");
	if (r > 0)
		find_reason(reason, criu_log, log);
	return r ? fail_engine(*ret_engine, r, "restore it", reason, err) : 0;
}

/* The log of a container that could not be restored is removed with it. */
static int restore_by_podman(const char *path, const char *name, struct brumate_error *err)
{
	auto_(workspace_fini) struct workspace w = { .dir = "" };
	struct words words = { .n = 0 };
	char reason[REASON_BYTES];
	int r = workspace_make(&w, path, err);

	if (r < 0)
		return r;
	auto_free char *log = place(&w, "log");
	add_word(&words, "podman");
	add_word(&words, "container");
	add_word(&words, "restore");
	add_word(&words, "--import");
	add_word(&words, path);
	add_word(&words, "--name");
	add_word(&words, name);
	r = log ? run_engine(&w, &words, NULL, log) : -ENOMEM;
	if (r > 0)
		find_reason(reason, NULL, log);
	return r ? fail_engine("podman", r, "restore it", reason, err) : 0;
}

static int check_name(const char *name, struct brumate_error *err)
{
	if (*name && *name != '-' && *name != '.' && !strchr(name, '/'))
		return 0;
	return brumate_fail(err, EINVAL, "\"%s\" cannot be the name of a container", name);
}

int service_restore_container(const char *path, const char *name, const char *bundle,
			      const char **ret_engine, struct brumate_error *err)
{
	auto_json json_t *about = NULL;
	auto_free char *layer = NULL;
	struct stat st;
	int r = check_root(err);

	if (r == 0)
		r = check_name(name, err);
	if (r == 0 && stat(path, &st) < 0)
		r = brumate_fail(err, errno, "%s: %m", path);
	if (r == 0 && S_ISDIR(st.st_mode))
		r = oci_image_layer(&layer, path, err);
	if (r < 0)
		return r;
	const char *archive = layer ? layer : path;
	r = archive_about(&about, archive, err);
	if (r < 0)
		return r;
	if (r > 0)
		return restore_by_runtime(about, archive, name, bundle, ret_engine, err);
	if (bundle)
		return brumate_fail(err, EINVAL, "--bundle is for a container of runc or crun");
	*ret_engine = "podman";
	return restore_by_podman(archive, name, err);
}
