# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2034,SC2154 # whoever reads it has the other half of the variables
# Read by tools that build what comes with CRIU's source, of the release and suite that CRIU itself is of (tools/criu-provision),
# from the mirror of this machine's own apt. Nothing outside $dest changes: apt runs on a private state and checks signatures.
# They have die() and $source, and set $name to what they make.

# Prepares $work, which becomes $dest at the end. Ends the tool where $dest is complete.
begin() {
	if [ -e "$dest/VERSION" ]; then
		printf '%s: %s already holds that of %s\n' "$name" "$dest" "$(cat "$dest/VERSION")"
		exit 0
	fi
	[ ! -e "$dest" ] || die "$dest exists and was not made by this tool" "remove it, or name another directory"
	for tool in apt-get apt-cache make cc tar xz "$@"; do
		command -v "$tool" >/dev/null || die "no $tool here"
	done
	[ -e "$source/.criu/VERSION" ] || die "no CRIU was provisioned here, so its release is not known" "run tools/criu-provision"

	# "4.2.1 (package 4.2.1-1, debian testing, amd64)"
	package=$(sed 's/.*(package \([^,]*\),.*/\1/' "$source/.criu/VERSION")
	family=$(sed 's/.*, \([a-z]*\) [^ ]*, [^,]*)$/\1/' "$source/.criu/VERSION")
	suite=$(sed 's/.*, [a-z]* \([^ ]*\), [^,]*)$/\1/' "$source/.criu/VERSION")

	mkdir -p "$(dirname "$dest")"
	dest=$(cd "$(dirname "$dest")" && pwd)/$(basename "$dest")
	work=$dest.new.$$
	trap 'rm -rf "$work"' EXIT
	trap 'exit 1' HUP INT TERM
	mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial" "$work/source" "$work/out"
	: >"$work/apt/status"
}

# The first line of what went wrong.
why() { sed -n 's/^[EW]: //p' "$work/log" | head -n 1; }

# Downloads the archive of CRIU's authors; what the distribution adds to it is not about what is built of it.
fetch_source() {
	# The mirror that criu-provision takes.
	# shellcheck source=/dev/null
	. /etc/os-release
	codename=${UBUNTU_CODENAME:-${VERSION_CODENAME-}}
	# shellcheck disable=SC2016 # apt's own variables
	mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(ORIGIN)' 'Created-By: Packages' |
		awk -v rel="$codename" -v family="$family" 'tolower($3) == family && ($2 == rel || $2 == "stable" || $2 == "sid" ||
			$2 == "unstable" || $2 == "testing") { print $1; exit }')
	[ -n "$mirror" ] || die "apt has no package source for $codename" "give apt a mirror of $family and run apt-get update"
	keyring=/usr/share/keyrings/$family-archive-keyring.gpg
	[ -e "$keyring" ] || keyring=''
	components=main
	[ "$family" != ubuntu ] || components='main universe'
	echo "deb-src ${keyring:+[signed-by=$keyring] }$mirror $suite $components" >"$work/apt/sources.list"
	cat >"$work/apt/apt.conf" <<CONF
Dir::Etc::sourcelist "$work/apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$work/apt/lists";
Dir::State::status "$work/apt/status";
Dir::Cache "$work/apt/cache";
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::AllowInsecureRepositories "false";
APT::Update::Error-Mode "any";
CONF
	export APT_CONFIG="$work/apt/apt.conf"
	apt-get -q update >"$work/log" 2>&1 || die "apt-get update: $(why)"
	fetch "criu=$package" || fetch criu || die "cannot fetch the source of CRIU $package from $suite: $(why)"
}

fetch() { (cd "$work/source" && apt-get -q source --download-only --tar-only "$1") >"$work/log" 2>&1; }

# Unpacks the files of the archive that match into a folder.
unpack_source() {
	into=$1
	shift
	mkdir -p "$into"
	tar -xf "$work"/source/criu_*.orig.tar.* -C "$into" --strip-components=1 --no-same-owner --wildcards "$@" ||
		die "cannot unpack the source of CRIU"
}

# Puts $work/out in its place.
finish() {
	archive=$(basename "$work"/source/criu_*.orig.tar.*)
	archive=${archive#criu_}
	printf '%s (%s %s)\n' "${archive%.orig.tar.*}" "$family" "$suite" >"$work/out/VERSION"
	mv -T "$work/out" "$dest" 2>"$work/log" || [ -e "$dest/VERSION" ] || die "$(cat "$work/log")" # or somebody was faster
	printf '%s: %s holds that of %s\n' "$name" "$dest" "$(cat "$dest/VERSION")"
}
