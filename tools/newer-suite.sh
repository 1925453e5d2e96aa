# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2034,SC2154 # whoever reads it has the other half of the variables
# Read by tools that take programs out of a newer suite of the mirror that this machine's own apt uses, by apt on a private
# state in $work, with the machine's keyring. They have die().

# Finds the mirror, its keyring, and the suites that may have something newer.
find_mirror() {
	for tool in apt-get apt-cache dpkg dpkg-deb; do
		command -v "$tool" >/dev/null || die "no $tool here: this is not a Debian or Ubuntu system" \
			"install what it provides with the system's package manager"
	done

	# shellcheck source=/dev/null
	. /etc/os-release
	codename=${VERSION_CODENAME-}
	case " ${ID-} ${ID_LIKE-} " in
	*' ubuntu '*)
		family=ubuntu
		codename=${UBUNTU_CODENAME:-$codename}
		suites='questing resolute devel'
		;;
	*' debian '*)
		family=debian
		suites='stable stable-backports testing unstable'
		;;
	*) die "do not know where newer packages for ${PRETTY_NAME-this system} are" ;;
	esac
	arch=$(dpkg --print-architecture)

	# The mirror of the running release (others than the distribution name their suites after its releases
	# too), and the components that carry what we want in newer suites.
	# shellcheck disable=SC2016 # apt's own variables
	mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(ARCHITECTURE) $(ORIGIN)' 'Created-By: Packages' |
		awk -v rel="$codename" -v arch="$arch" -v family="$family" 'tolower($4) == family && $3 == arch &&
			($2 == rel || $2 == "stable" || $2 == "sid" || $2 == "unstable" || $2 == "testing") { print $1; exit }')
	[ -n "$mirror" ] || die "apt has no package source for $codename ($arch)" \
		"give apt a mirror of the distribution and run apt-get update"
	case $family in
	debian) components=main ;;
	ubuntu) components='main universe' ;;
	esac

	keyring=''
	for file in "/usr/share/keyrings/$family-archive-keyring.gpg" "/usr/share/keyrings/$family-archive-keyring.pgp"; do
		[ -e "$file" ] && keyring=$file
	done
	# Without that package apt's own trusted keys decide.
	options=${keyring:+signed-by=$keyring}
}

# From now on apt-get and apt-cache work in $work/apt.
private_apt() {
	mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial" "$work/debs" "$work/root"
	: >"$work/apt/status"
	cat >"$work/apt/apt.conf" <<CONF
Dir::Etc::sourcelist "$work/apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State::lists "$work/apt/lists";
Dir::State::status "$work/apt/status";
Dir::State::extended_states "$work/apt/extended_states";
Dir::Cache "$work/apt/cache";
APT::Architecture "$arch";
APT::Sandbox::User "";
APT::Get::List-Cleanup "true";
Acquire::Languages "none";
Acquire::AllowInsecureRepositories "false";
APT::Update::Error-Mode "any";
CONF
	export APT_CONFIG="$work/apt/apt.conf"
}

# Has apt read the suite $1 alone.
read_suite() {
	echo "deb ${options:+[$options] }$mirror $1 $components" >"$work/apt/sources.list"
	LC_ALL=C apt-get -q update >"$work/apt/log" 2>&1
}

# Says why apt could not read a suite.
why_not() {
	if grep -q -e 'does not have a Release file' -e ' 404 ' "$work/apt/log"; then
		echo 'not on the mirror'
	elif grep -q -e NO_PUBKEY -e EXPKEYSIG -e 'is not signed' "$work/apt/log"; then
		echo 'signed with a key this machine does not have'
	elif grep -q -e 'is expired' -e 'is not valid yet' "$work/apt/log"; then
		echo 'out of date by the clock of this machine'
	else
		sed -n 's/^[EW]: //p' "$work/apt/log" | head -n 1
	fi
}

# Unpacks packages into $work/root; $work/contents says which file is of which.
unpack() {
	(cd "$work/debs" && apt-get -q download "$@") >"$work/apt/log" 2>&1 ||
		die "cannot fetch $*: $(tail -n 1 "$work/apt/log")"
	for deb in "$work"/debs/*.deb; do
		dpkg-deb -x "$deb" "$work/root"
		# shellcheck disable=SC2016 # dpkg's own variables
		from=$(dpkg-deb -W --showformat='${Package}\t${Version}\t${source:Package}\t${source:Version}' "$deb")
		dpkg-deb --fsys-tarfile "$deb" | tar -tf - | sed "s|^\.\(.*\)|\1	$from|" >>"$work/contents"
	done
}
