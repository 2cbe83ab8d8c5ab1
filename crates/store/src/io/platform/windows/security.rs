//! Owners and access lists: what mode 0700 is on Windows.
//!
//! A private folder is made with a list of its own, which names the user and the system; files in it inherit that. A
//! folder that exists is taken for private when its list names none of the groups that strangers are in; a user who
//! is named alone was named on purpose.

use std::ffi::c_void;
use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::path::Path;
use std::ptr::null_mut;

use windows_sys::Win32::Foundation::{ERROR_ALREADY_EXISTS, LocalFree};
use windows_sys::Win32::Security::Authorization::{
    ConvertSidToStringSidW, ConvertStringSecurityDescriptorToSecurityDescriptorW,
    GetNamedSecurityInfoW, SDDL_REVISION_1, SE_FILE_OBJECT,
};
use windows_sys::Win32::Security::{
    ACCESS_ALLOWED_ACE, ACE_HEADER, ACL, DACL_SECURITY_INFORMATION, EqualSid, GetAce,
    GetTokenInformation, IsWellKnownSid, OWNER_SECURITY_INFORMATION, PSECURITY_DESCRIPTOR, PSID,
    SECURITY_ATTRIBUTES, TOKEN_INFORMATION_CLASS, TOKEN_OWNER, TOKEN_QUERY, TOKEN_USER, TokenOwner,
    TokenUser, WELL_KNOWN_SID_TYPE, WinAnonymousSid, WinAuthenticatedUserSid, WinBuiltinGuestsSid,
    WinBuiltinUsersSid, WinInteractiveSid, WinNetworkSid, WinWorldSid,
};
use windows_sys::Win32::Storage::FileSystem::CreateDirectoryW;
use windows_sys::Win32::System::SystemServices::ACCESS_DENIED_ACE_TYPE;
use windows_sys::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};

use super::super::Access;
use super::{checked, wide};

/// Groups that strangers are in.
const STRANGERS: [WELL_KNOWN_SID_TYPE; 7] = [
    WinWorldSid,
    WinAuthenticatedUserSid,
    WinBuiltinUsersSid,
    WinBuiltinGuestsSid,
    WinAnonymousSid,
    WinInteractiveSid,
    WinNetworkSid,
];

/// Memory that the system has allocated and we give back.
struct Local(*mut c_void);

impl Drop for Local {
    fn drop(&mut self) {
        // SAFETY: the pointer is null or came from a function whose result is to be given back so, once.
        unsafe { LocalFree(self.0) };
    }
}

/// Owner and access list of a file or folder; both point into `_memory`.
struct Descriptor {
    owner: PSID,
    list: *const ACL,
    _memory: Local,
}

impl Descriptor {
    fn of(path: &Path) -> io::Result<Self> {
        let name = wide(path);
        let what = OWNER_SECURITY_INFORMATION | DACL_SECURITY_INFORMATION;
        let (mut owner, mut list): (PSID, *mut ACL) = (null_mut(), null_mut());
        let mut memory: PSECURITY_DESCRIPTOR = null_mut();
        // SAFETY: the name ends with a zero and lives until the call returns, which writes three pointers; what they
        // point to lies in the descriptor, which this value keeps.
        let error = unsafe {
            GetNamedSecurityInfoW(
                name.as_ptr(),
                SE_FILE_OBJECT,
                what,
                &raw mut owner,
                null_mut(),
                &raw mut list,
                null_mut(),
                &raw mut memory,
            )
        };
        let memory = Local(memory);
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error.cast_signed()));
        }
        Ok(Self { owner, list, _memory: memory })
    }

    fn is_owned_by(&self, user: PSID) -> bool {
        // SAFETY: both are null or identifiers that the system has written and that are still kept.
        !self.owner.is_null() && !user.is_null() && unsafe { EqualSid(self.owner, user) } != 0
    }

    /// Whether a group of strangers is given anything. Without a list everybody may do everything.
    fn lets_strangers_in(&self) -> bool {
        if self.list.is_null() {
            return true;
        }
        // SAFETY: the list lies in the descriptor that this value keeps.
        let count = unsafe { (*self.list).AceCount };
        (0..u32::from(count)).any(|index| {
            let mut entry: *mut c_void = null_mut();
            // SAFETY: as above; the call checks the index and writes a pointer into the list.
            if unsafe { GetAce(self.list, index, &raw mut entry) } == 0 {
                return true;
            }
            // SAFETY: every entry begins with a header.
            let kind = u32::from(unsafe { (*entry.cast::<ACE_HEADER>()).AceType });
            if kind == ACCESS_DENIED_ACE_TYPE {
                return false;
            }
            // SAFETY: entries of a file that allow have this form; the identifier begins at its last field.
            let who: PSID =
                unsafe { &raw mut (*entry.cast::<ACCESS_ALLOWED_ACE>()).SidStart }.cast();
            // SAFETY: the identifier lies in the list.
            STRANGERS.iter().any(|&group| unsafe { IsWellKnownSid(who, group) } != 0)
        })
    }
}

/// A fact of the token of this process, in words of the system's alignment.
fn token(class: TOKEN_INFORMATION_CLASS) -> io::Result<Vec<u64>> {
    let mut handle = null_mut();
    // SAFETY: the handle of the own process is always valid; the call writes a handle.
    checked(unsafe { OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &raw mut handle) })?;
    // SAFETY: the handle was made just now and belongs to nothing else.
    let token = unsafe { OwnedHandle::from_raw_handle(handle) };
    // An identifier has 68 bytes at the most, and stands behind a pointer and attributes.
    let mut words = vec![0_u64; 32];
    let (bytes, mut used) = (size_of_val(&words[..]) as u32, 0);
    // SAFETY: the token is open, and the call writes at most as many bytes as there are.
    checked(unsafe {
        GetTokenInformation(
            token.as_raw_handle(),
            class,
            words.as_mut_ptr().cast(),
            bytes,
            &raw mut used,
        )
    })?;
    Ok(words)
}

pub(in crate::io::platform) fn access(path: &Path) -> io::Result<Access> {
    let found = Descriptor::of(path)?;
    // What an administrator makes may belong to the group.
    let (user, owner) = (token(TokenUser)?, token(TokenOwner)?);
    // SAFETY: the system has written this structure at the beginning, aligned as `u64` is.
    let user = unsafe { (*user.as_ptr().cast::<TOKEN_USER>()).User.Sid };
    // SAFETY: as above.
    let owner = unsafe { (*owner.as_ptr().cast::<TOKEN_OWNER>()).Owner };
    Ok(if !found.is_owned_by(user) && !found.is_owned_by(owner) {
        Access::OtherOwner
    } else if found.lets_strangers_in() {
        Access::Others
    } else {
        Access::OwnerOnly
    })
}

pub(in crate::io::platform) fn has_owner_of(folder: &Path, file: &Path) -> io::Result<bool> {
    let file = Descriptor::of(file)?;
    Ok(Descriptor::of(folder)?.is_owned_by(file.owner))
}

/// "D:P", no rights from above; then all rights (FA), for files and folders within (OICI), of user and system.
fn private_list() -> io::Result<Local> {
    let user = token(TokenUser)?;
    // SAFETY: the system has written this structure at the beginning, aligned as `u64` is.
    let sid = unsafe { (*user.as_ptr().cast::<TOKEN_USER>()).User.Sid };
    let mut name: *mut u16 = null_mut();
    // SAFETY: the identifier lies in `user`; the call writes a pointer.
    checked(unsafe { ConvertSidToStringSidW(sid, &raw mut name) })?;
    let memory = Local(name.cast());
    // SAFETY: the system's text ends with a zero, which bounds this loop, and is kept by `memory`.
    let length = (0..).take_while(|&at| unsafe { *name.add(at) } != 0).count();
    // SAFETY: the characters before the zero were just looked at.
    let user = String::from_utf16_lossy(unsafe { std::slice::from_raw_parts(name, length) });
    drop(memory);
    let text = format!("D:P(A;OICI;FA;;;{user})(A;OICI;FA;;;SY)\0");
    let text: Vec<u16> = text.encode_utf16().collect();
    let mut descriptor: PSECURITY_DESCRIPTOR = null_mut();
    // SAFETY: the text ends with a zero and lives until the call returns, which writes a pointer.
    checked(unsafe {
        ConvertStringSecurityDescriptorToSecurityDescriptorW(
            text.as_ptr(),
            SDDL_REVISION_1,
            &raw mut descriptor,
            null_mut(),
        )
    })?;
    Ok(Local(descriptor))
}

pub(in crate::io::platform) fn create_private_folder(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        create_private_folder(parent)?;
    }
    let list = private_list()?;
    let attributes = SECURITY_ATTRIBUTES {
        nLength: size_of::<SECURITY_ATTRIBUTES>() as u32,
        lpSecurityDescriptor: list.0,
        bInheritHandle: 0,
    };
    let name = wide(path);
    // SAFETY: name and attributes live until the call returns, and the descriptor is kept by `list`.
    match checked(unsafe { CreateDirectoryW(name.as_ptr(), &raw const attributes) }) {
        // Made by another process meanwhile.
        Err(error)
            if error.raw_os_error() == Some(ERROR_ALREADY_EXISTS.cast_signed())
                && path.is_dir() =>
        {
            Ok(())
        }
        made => made,
    }
}
