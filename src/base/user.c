// SPDX-License-Identifier: MIT
/* The C library changes the ids of all threads of a process at once, as POSIX requires; the system calls change those
 * of the calling thread alone (nptl(7)). */
#include "base/user.h"

#include <errno.h>
#include <grp.h>
#include <linux/keyctl.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PASSWD_BYTES_MAX = 1 << 20 };

/* The name of a user, or NULL if no account has that uid. */
static int find_name(char **ret, uid_t uid)
{
	for (size_t room = 1024; room <= PASSWD_BYTES_MAX; room *= 2) {
		struct passwd pw, *found = NULL;
		auto_free char *buf = malloc(room);

		if (!buf)
			return -ENOMEM;
		int code = getpwuid_r(uid, &pw, buf, room, &found);
		if (code == ERANGE)
			continue;
		/* For a uid that is in no database, some databases report one of these: getpwnam(3). */
		if (code && code != ENOENT && code != ESRCH && code != EBADF && code != EPERM)
			return -code;
		*ret = found ? strdup(found->pw_name) : NULL;
		return found && !*ret ? -ENOMEM : 0;
	}
	return -ERANGE;
}

int user_groups(gid_t **ret, size_t *ret_n, uid_t uid, gid_t gid, struct brumate_error *err)
{
	auto_free char *name = NULL;
	int n = 0, r = find_name(&name, uid);

	if (r < 0)
		return brumate_fail(err, -r, "groups of uid %u: %m", uid);
	if (name)
		getgrouplist(name, gid, NULL, &n); /* returns the number in n */
	n = n > 0 ? n : 1;
	auto_free gid_t *groups = calloc((size_t)n, sizeof(*groups));
	if (!groups)
		return brumate_fail(err, ENOMEM, "groups of uid %u: %m", uid);
	groups[0] = gid;
	if (name && getgrouplist(name, gid, groups, &n) < 0)
		return brumate_fail(err, EAGAIN, "groups of uid %u change at this moment", uid);
	*ret = take_ptr(&groups);
	*ret_n = (size_t)n;
	return 0;
}

static int set_groups(const gid_t *groups, size_t n)
{
	return syscall(SYS_setgroups, n, groups) < 0 ? -errno : 0;
}

/* The keys in a session's keyring may be used by every process that has it, of any user; ours are root's. Where the kernel has no
 * keys, or a filter keeps them from us, the user cannot ask for them either. */
static int leave_keys(void)
{
	if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) >= 0 || errno == ENOSYS ||
	    errno == EPERM)
		return 0;
	return -errno;
}

int user_become(uid_t uid, gid_t gid, const gid_t *groups, size_t n_groups)
{
	int r = leave_keys(); /* as root, whose keyrings do not count against what the user may have */

	if (r == 0)
		r = set_groups(groups, n_groups);
	if (r < 0)
		return r;
	return syscall(SYS_setresgid, gid, gid, gid) < 0 ||
			       syscall(SYS_setresuid, uid, uid, uid) < 0
		       ? -errno
		       : 0;
}

static int set_gid(gid_t gid)
{
	return syscall(SYS_setresgid, -1, gid, -1) < 0 ? -errno : 0;
}

static int set_uid(uid_t uid)
{
	return syscall(SYS_setresuid, -1, uid, -1) < 0 ? -errno : 0;
}

static int read_own_groups(struct user_files *u)
{
	int n = getgroups(0, NULL);

	if (n < 0)
		return -errno;
	u->groups = calloc((size_t)n + 1, sizeof(*u->groups));
	if (!u->groups)
		return -ENOMEM;
	n = getgroups(n, u->groups);
	if (n < 0) {
		cleanup_free(&u->groups);
		return -errno;
	}
	u->n_groups = (size_t)n;
	return 0;
}

static int become_user(uid_t uid, gid_t gid, const gid_t *groups, size_t n_groups)
{
	int r = set_groups(groups, n_groups);

	if (r == 0)
		r = set_gid(gid);
	return r < 0 ? r : set_uid(uid);
}

int user_files_enter(struct user_files *ret, uid_t uid, gid_t gid, struct brumate_error *err)
{
	struct user_files u = { .entered = true,
				.dumpable = prctl(PR_GET_DUMPABLE) == 1,
				.uid = geteuid(),
				.gid = getegid() };
	auto_free gid_t *groups = NULL;
	size_t n_groups;

	*ret = USER_FILES_NONE;
	if (uid == u.uid)
		return 0;
	if (u.uid != 0)
		return brumate_fail(err, EPERM, "only root can access files as uid %u", uid);
	int r = user_groups(&groups, &n_groups, uid, gid, err);
	if (r < 0)
		return r;
	r = read_own_groups(&u);
	if (r < 0)
		return brumate_fail(err, -r, "our own groups: %m");
	r = become_user(uid, gid, groups, n_groups);
	if (r < 0) {
		user_files_leave(&u);
		return brumate_fail(err, -r, "files cannot be accessed as uid %u: %m", uid);
	}
	*ret = u;
	return 0;
}

void user_files_leave(struct user_files *u)
{
	int code = errno;

	if (u->entered) {
		if (set_uid(u->uid) < 0 || set_gid(u->gid) < 0 ||
		    set_groups(u->groups, u->n_groups) < 0)
			abort();
		if (u->dumpable) /* changing ids clears it (prctl(2)) */
			prctl(PR_SET_DUMPABLE, 1);
	}
	free(u->groups);
	*u = USER_FILES_NONE;
	errno = code;
}

/* ---- signals ---- */

/* A uid that no account has. A user namespace may map only some of the numbers. */
static const uid_t nobodys[] = { (uid_t)-2, 65534 };

int user_signals_enter(struct user_signals *ret, uid_t uid)
{
	struct user_signals u = { .entered = true, .dumpable = prctl(PR_GET_DUMPABLE) == 1 };

	*ret = USER_SIGNALS_NONE;
	if (uid == 0 || geteuid() != 0)
		return 0;
	for (size_t i = 0; i < sizeof(nobodys) / sizeof(nobodys[0]); i++)
		if (syscall(SYS_setresuid, nobodys[i], uid, 0) == 0) {
			*ret = u;
			return 0;
		}
	return -errno;
}

void user_signals_leave(struct user_signals *u)
{
	int code = errno;

	if (u->entered) {
		if (syscall(SYS_setresuid, 0, 0, 0) < 0)
			abort();
		if (u->dumpable)
			prctl(PR_SET_DUMPABLE, 1);
	}
	*u = USER_SIGNALS_NONE;
	errno = code;
}
